// Instant after instant: what happens, and what is tried once all that ends at an instant has ended.
#pragma once

#include "world.hpp"

namespace replay {

inline World::World(std::vector<Program> programs, const Settings &settings)
    : programs_(std::move(programs)), settings_(settings) {
    agenda_.keeps_waits = settings.keeps_waits;
    actions_.resize(programs_.size());
    for (size_t i = 0; i < programs_.size(); i++) Counter(programs_[i], actions_[i]);
}

// Set up a rank. At time 0 each tensor that exists is at home; what another rank stores takes no room.
inline void World::add_rank(Rank rank, Span<int32_t> link_paths, Span<int32_t> stored_elsewhere) {
    const auto size = [](const auto &of) { return static_cast<int32_t>(of.size()); };
    const Program &p = program(rank);
    const int32_t number = size(ranks_);
    rank.first_stream = size(streams_), rank.first_link = size(links_);
    rank.first_queue = size(queues_), rank.first_count = size(counts_);
    counts_.resize(counts_.size() + 2 * p.streams + p.queues);
    for (size_t i = 0; i < actions(rank).counts_per_lap.size(); i++)
        counts_[rank.first_count + i].per_lap = actions(rank).counts_per_lap[i];
    for (int32_t i = 0; i < p.streams; i++) {
        agenda_.look_at(size(streams_));
        streams_.push_back({number, i, rank.first_count + 2 * i, rank.first_count + 2 * i + 1});
    }
    queues_.resize(queues_.size() + p.queues);
    for (int32_t i = 0; i < p.queues; i++) queues_[rank.first_queue + i].started = rank.first_count + 2 * p.streams + i;
    for (int32_t i = 0; i < p.links; i++) {
        const int32_t queue = rank.first_queue + p.queue_of[i], first_channel = size(channels_);
        links_.push_back({number, i, queue, first_channel, p.source[i], p.target[i], link_paths[i]});
        for (int32_t channel = 0; channel < p.channels[i]; channel++)
            channels_.push_back({size(links_) - 1, channel, NONE, 0});
        Queue &of = queues_[queue];
        while (size(of.free) < p.channels[i]) of.free.push(size(of.free));
    }
    rank.held.assign(static_cast<size_t>(p.tiers) * p.tensors, 0);
    rank.valid = rank.held;
    rank.moves_ended.assign(p.tensors, 0);
    rank.first_transfer.assign(p.tensors, NONE);
    rank.first_waiter.assign(p.tensors, NONE);
    rank.host_now = p.starts_ns;
    rank.next_key = Key{rank.number} << RANK_SHIFT;
    agenda_.is_considered.resize(2 * (streams_.size() + links_.size()));
    ranks_.push_back(std::move(rank));
    Rank &added = ranks_.back();
    for (int32_t tensor = 0; tensor < p.tensors; tensor++) {
        const int32_t home = p.home[tensor];
        if (home < 0) continue;
        Tier &tier = tiers[added.tiers[home]];
        const bool is_stored = std::binary_search(stored_elsewhere.begin(), stored_elsewhere.end(), tensor);
        if (!is_stored && (tier.used += p.size_bytes[tensor]) > tier.capacity) throw NotCovered{};
        added.valid[place(added, home, tensor)] = 1;
        hold(number, home, tensor);
    }
}

// Run to the end; return whether all ranks have done all. The checkpoint is passed now and then, and may stop the run.
inline bool World::run(const std::function<bool()> &checkpoint) {
    constexpr int64_t EVENTS_PER_CHECKPOINT = 1 << 14;
    for (size_t rank = 0; rank < ranks_.size(); rank++) advance_host(static_cast<int32_t>(rank));
    settle();
    for (int64_t events = 1; !clock_.events.empty(); events++) {
        clock_.now = clock_.events.next();
        if (clock_.now > settings_.stop_ns || (events % EVENTS_PER_CHECKPOINT == 0 && !checkpoint())) return false;
        call(clock_.events.take());
        if (clock_.events.empty() || clock_.events.next() > clock_.now) settle();
    }
    return is_done();
}

inline void World::call(const Call &call) {
    switch (call.what) {
        case What::FINISH_COMPUTE: return finish_compute(call.who);
        case What::LOOK_STREAM: return look_at_stream(call.who);
        case What::LOOK_LINK: return look_at_link(call.who);
        case What::LEAD_OVER: return end_lead(call.who);
        case What::END_COPY: return end_copy(call.who);
        case What::ADVANCE_HOST: return advance_host(call.who);
        case What::FILL_QUEUE: return fill_queue(call.who, call.item);
        case What::TRY_DETACH: return try_detach(call.who);
        case What::FREE_PLACE: agenda_.frees.push_back(call); return;
        case What::PIPE_DUE:
            for (const Call &end : network.take_ended(call.who, call.item)) this->call(end);
            return;
        case What::BEGIN_FLOWS: return begin_flows(call.who);
        case What::END_FLOW: return end_flow(call.who);
        case What::BEGIN_KERNEL: return begin_kernel_flows(call.who);
        case What::END_KERNEL_FLOW: return end_kernel_flow(call.who);
    }
}

// Free, grant and start until nothing more can happen at this instant; then set rates, and find causes of waits.
inline void World::settle() {
    while (!agenda_.frees.empty() || !agenda_.heads.empty()) {
        while (!agenda_.frees.empty()) {
            const Call free = agenda_.frees.front();
            agenda_.frees.pop_front();
            free_place(free.who, free.item, free.tier);
        }
        while (!agenda_.heads.empty()) {
            const int32_t head = agenda_.take_head(), streams = static_cast<int32_t>(streams_.size());
            head < streams ? try_compute(head) : try_copy(head - streams);
        }
    }
    if (agenda_.resets_rates) network.reset_rates();
    agenda_.resets_rates = false;
    for (int32_t stream : agenda_.accounts) look_at_account(stream);
    agenda_.accounts.clear();
}

inline bool World::is_done() const {
    const auto has_issued = [](const Rank &rank) {
        const auto waits = [](int32_t waiter) { return waiter != NONE; };
        return rank.is_finished && rank.awaited == NONE &&
               std::none_of(rank.first_waiter.begin(), rank.first_waiter.end(), waits);
    };
    const auto is_idle = [](const Stream &stream) { return !stream.is_running && stream.queue.empty(); };
    const auto is_empty = [](const Queue &queue) { return queue.waiting.empty() && queue.running.empty(); };
    return std::all_of(ranks_.begin(), ranks_.end(), has_issued) &&
           std::all_of(streams_.begin(), streams_.end(), is_idle) &&
           std::all_of(queues_.begin(), queues_.end(), is_empty);
}

// Return the first of these waits whose count is too low, or none.
inline const Wait *World::unmet(Span<Wait> waits, const Rank &rank, int32_t lap) const {
    for (const Wait &wait : waits) {
        const Count &count = counts_[rank.first_count + wait.count];
        if (count.reached < wait.goal + lap * count.per_lap) return &wait;
    }
    return nullptr;
}

// Return whether some count is too low; if so, call back once the first of those is high enough.
inline bool World::must_wait(Span<Wait> waits, const Rank &rank, int32_t lap, Call call) {
    const Wait *wait = unmet(waits, rank, lap);
    if (wait == nullptr) return false;
    Count &count = counts_[rank.first_count + wait->count];
    count.waiters.put(wait->goal + lap * count.per_lap, clock_.put++, call);
    return true;
}

inline void World::reach(int32_t index) {
    Count &count = counts_[index];
    count.reached++;
    while (!count.waiters.empty() && count.waiters.next() == count.reached) call(count.waiters.take());
}

}  // namespace replay
