// Links: copies start strictly in issue order; each takes the lowest free channel.
#pragma once

#include "places.hpp"

namespace replay {

class Links : public Places {
protected:
    // Ask for a try of the first copy by its link: in this round, or once what it stands in line behind has started.
    void look_at_link(int32_t index) {
        const Queue &queue = queues_[links_[index].queue];
        if (queue.waiting.empty()) return;
        const Transfer &head = transfers_[queue.waiting.front()];
        const Rank &rank = ranks_[links_[index].rank];
        if (!must_wait(rank.actions->line[head.action], rank, head.lap, {What::LOOK_LINK, index}))
            agenda.consider(head_of(head.link), head.key);
    }

    // Return whether the source of a copy is not valid yet, or an earlier detach or write of its tensor has not ended.
    bool lacks_source(const Transfer &copy) const {
        const Link &link = links_[copy.link];
        const Rank &rank = ranks_[link.rank];
        return !rank.valid[rank.place(link.source, copy.tensor)] ||
               rank.tensors[copy.tensor].moves_ended < rank.moves_due(rank.actions->moves[copy.action][0], copy.lap) ||
               unmet(rank.actions->ends[copy.action], rank, copy.lap) != nullptr;
    }

    // Start the first copy, which stands behind nothing in line, or register with what it waits for.
    void try_copy(int32_t index) {
        const Link &link = links_[index];
        Queue &queue = queues_[link.queue];
        if (queue.waiting.empty() || queue.free.empty()) return;
        const Transfer head = transfers_[queue.waiting.front()];
        Rank &rank = ranks_[link.rank];
        const Call again{What::LOOK_LINK, index};
        if (head.issued > clock.now) return clock.at(head.issued, again);
        if (lacks_source(head)) {
            agenda.wake(queue.watchers);
            if (must_wait(rank.actions->ends[head.action], rank, head.lap, again)) return;
            const int64_t due = rank.moves_due(rank.actions->moves[head.action][0], head.lap);
            return wait_for_moves(rank.tensors[head.tensor], due, head.key, again);
        }
        const int64_t size = rank.program->size_bytes[head.tensor];
        const bool takes_room = size && !rank.held[rank.place(link.target, head.tensor)];
        if (takes_room && !admit(rank.tiers[link.target], head_of(index), head.key | COPIES, size))
            return agenda.wake(queue.watchers);
        hold(rank, link.target, head.tensor);
        start_copy(index);
    }

    // Begin the flow of a copy once its latency is over; one without any work left ends now.
    void end_lead(int32_t channel) {
        const Transfer &copy = transfers_[channels_[channel].transfer];
        const Link &link = links_[copy.link];
        const int64_t size = ranks_[link.rank].program->size_bytes[copy.tensor];
        if (link.path != NONE && size && network.paths[link.path].unit != ENDLESS) return join_copy(channel);
        end_copy(channel);
    }

    // End a copy: make its target valid, free its channel, and let the next one start.
    void end_copy(int32_t number) {
        const Channel channel = channels_[number];
        const Transfer copy = transfers_[channel.transfer];
        const Link &link = links_[channel.link];
        Queue &queue = queues_[link.queue];
        Rank &rank = ranks_[link.rank];
        queue.running.erase(std::find(queue.running.begin(), queue.running.end(), number));
        queue.free.push(channel.index);
        spans.add(rank.number, COPY, copy.tensor, link.index, channel.index, copy.key & ISSUE_MASK, copy.issued,
                  channel.start, clock.now);
        rank.valid[rank.place(link.target, copy.tensor)] = 1;
        drop_transfer(rank.tensors[copy.tensor], channel.transfer);
        end_move(rank.tensors[copy.tensor]);
        agenda.wake(queue.watchers);
        look_at_link(channel.link);
    }

private:
    size_t timing_of(const Link &link, int32_t tensor) const {
        const Program &p = *ranks_[link.rank].program;
        return static_cast<size_t>(link.index) * p.size_classes + p.size_class[tensor];
    }

    void start_copy(int32_t index) {
        const Link &link = links_[index];
        Queue &queue = queues_[link.queue];
        const int32_t number = link.first_channel + queue.free.top();
        Channel &channel = channels_[number];
        queue.free.pop();
        channel.transfer = queue.waiting.front(), channel.start = clock.now;
        queue.waiting.pop_front();
        queue.running.push_back(number);
        reach(queue.started);
        agenda.wake(queue.watchers);
        const Time lead = ranks_[link.rank].program->lead_ns[timing_of(link, transfers_[channel.transfer].tensor)];
        if (link.path == NONE || lead)
            clock.at(channel.start + lead, {What::LEAD_OVER, number});
        else
            join_copy(number);
        if (!queue.free.empty()) look_at_link(index);
    }

    void join_copy(int32_t channel) {
        const Transfer &copy = transfers_[channels_[channel].transfer];
        const Link &link = links_[copy.link];
        const Program &p = *ranks_[link.rank].program;
        const Wide work = work_of(p.size_bytes[copy.tensor], network.paths[link.path].unit);
        network.join(link.path, p.cap[timing_of(link, copy.tensor)], work, copy.key, {What::END_COPY, channel});
    }
};

}  // namespace replay
