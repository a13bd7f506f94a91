// A run: ranks are set up, and it goes from instant to instant until nothing is left to happen.
#pragma once

#include "hosts.hpp"

namespace replay {

class World final : public Hosts {
public:
    // Set up a rank. At time 0 each tensor that exists is at home; what another rank stores takes no room.
    void add_rank(Rank rank, Span<int32_t> link_paths, Span<int32_t> stored_elsewhere) {
        const Program &p = *rank.program;
        const int32_t index = size_of(ranks_);
        rank.first_stream = size_of(streams_), rank.first_link = size_of(links_);
        rank.first_queue = size_of(queues_), rank.first_count = size_of(counts_);
        for (int32_t per_lap : rank.actions->counts_per_lap) counts_.push_back({0, per_lap});
        for (int32_t i = 0; i < p.streams; i++) {
            agenda.look_at(size_of(streams_));
            streams_.push_back({index, i, rank.first_count + 2 * i, rank.first_count + 2 * i + 1});
        }
        for (int32_t i = 0; i < p.queues; i++) queues_.push_back({rank.first_count + 2 * p.streams + i});
        for (int32_t i = 0; i < p.links; i++) {
            const int32_t queue = rank.first_queue + p.queue_of[i];
            links_.push_back({index, i, queue, size_of(channels_), p.source[i], p.target[i], link_paths[i]});
            auto &free = queues_[queue].free;
            for (int32_t channel = 0; channel < p.channels[i]; channel++) {
                channels_.push_back({size_of(links_) - 1, channel});
                if (size_of(free) < p.channels[i]) free.push(channel);
            }
        }
        rank.held.assign(rank.place(p.tiers, 0), 0);
        rank.valid = rank.held;
        rank.tensors.resize(p.tensors);
        rank.now = p.starts_ns;
        rank.next_key = Key{rank.number} << RANK_SHIFT;
        for (int32_t tensor = 0; tensor < p.tensors; tensor++) {
            const int32_t home = p.home[tensor];
            if (home < 0) continue;
            Tier &tier = tiers[rank.tiers[home]];
            const bool is_stored = std::binary_search(stored_elsewhere.begin(), stored_elsewhere.end(), tensor);
            if (!is_stored && (tier.used += p.size_bytes[tensor]) > tier.capacity) throw NotCovered{};
            rank.valid[rank.place(home, tensor)] = 1;
            hold(rank, home, tensor);
        }
        agenda.is_considered.resize(streams_.size() + links_.size());
        ranks_.push_back(std::move(rank));
    }

    // Run to the end; return whether all ranks have done all. The checkpoint comes now and then.
    template <typename Checkpoint>
    bool run(Checkpoint checkpoint) {
        constexpr int64_t EVENTS_PER_CHECKPOINT = 1 << 14;
        for (int32_t rank = 0; rank < size_of(ranks_); rank++) advance_host(rank);
        settle();
        for (int64_t events = 1; !clock.events.empty(); events++) {
            const Due due = clock.events.top();
            clock.events.pop();
            clock.now = due.when;
            if (events % EVENTS_PER_CHECKPOINT == 0) checkpoint();
            call(due.call);
            if (clock.events.empty() || clock.events.top().when > clock.now) settle();
        }
        return is_done();
    }

private:
    void call(Call call) override {
        switch (call.what) {
            case What::FINISH_COMPUTE: return finish_compute(call.who);
            case What::LOOK_STREAM: return look_at_stream(call.who);
            case What::LOOK_LINK: return look_at_link(call.who);
            case What::LEAD_OVER: return end_lead(call.who);
            case What::END_COPY: return end_copy(call.who);
            case What::ADVANCE_HOST: return advance_host(call.who);
            case What::FILL_QUEUE: return fill_queue(call.who, call.item);
            case What::TRY_DETACH: return try_detach(call.who);
            case What::FREE_PLACE: return agenda.frees.emplace(key_of_detach(call.who), call.who);
            case What::BEGIN_FLOWS: return begin_flows(call.who);
            case What::END_FLOW: return end_flow(call.who);
            case What::BEGIN_KERNEL: return begin_kernel_flows(call.who);
            case What::END_KERNEL_FLOW: return end_kernel_flow(call.who);
            case What::PIPE_DUE:
                for (const Call &end : network.take_ended(call.who, call.item)) this->call(end);
        }
    }

    // Free, grant and start until nothing more can happen at this instant; then set rates, and find causes of waits.
    void settle() {
        while (!agenda.frees.empty() || !agenda.heads.empty()) {
            while (!agenda.frees.empty()) free_first();
            while (!agenda.heads.empty()) {
                const int32_t head = agenda.take_head(), link = head - head_of(0);
                link < 0 ? try_compute(head) : try_copy(link);
            }
        }
        if (std::exchange(agenda.resets_rates, false)) network.reset_rates();
        for (int32_t stream : agenda.accounts) look_at_wait(stream);
        agenda.accounts.clear();
    }

    bool is_done() const {
        const auto all = [](const auto &things, auto is) { return std::all_of(things.begin(), things.end(), is); };
        const auto is_settled = [](const Tensor &tensor) { return tensor.first_waiter == NONE; };
        const auto has_issued = [&](const Rank &rank) { return rank.is_finished && all(rank.tensors, is_settled); };
        const auto is_idle = [](const Stream &stream) { return !stream.is_running && stream.queue.empty(); };
        const auto is_empty = [](const Queue &queue) { return queue.waiting.empty() && queue.running.empty(); };
        return all(ranks_, has_issued) && all(streams_, is_idle) && all(queues_, is_empty);
    }
};

}  // namespace replay
