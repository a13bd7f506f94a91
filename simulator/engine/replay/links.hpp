// Links: copies start strictly in issue order; each takes the lowest free channel.
#pragma once

#include "world.hpp"

namespace replay {

// Ask for a try of the first copy by its link: in this round, or once what it stands in line behind has started.
inline void World::look_at_link(int32_t index) {
    const Queue &queue = queues_[links_[index].queue];
    if (queue.waiting.empty()) return;
    const Transfer &head = transfers_[queue.waiting.front()];
    const Rank &rank = ranks_[links_[index].rank];
    if (!must_wait(actions(rank).line[head.action], rank, head.lap, {What::LOOK_LINK, index}))
        agenda_.consider(static_cast<int32_t>(streams_.size()) + head.link, head.key);
}

// Return whether the source of a copy is not valid yet, or an earlier detach or write of its tensor has not ended.
inline bool World::lacks_source(const Transfer &transfer) {
    const Link &link = links_[transfer.link];
    const Rank &rank = ranks_[link.rank];
    return !rank.valid[place(rank, link.source, transfer.tensor)] ||
           rank.moves_ended[transfer.tensor] < moves_due(rank, actions(rank).moves[transfer.action][0], transfer.lap) ||
           unmet(actions(rank).ends[transfer.action], rank, transfer.lap) != nullptr;
}

// Start the first copy, which waits for no compute, or register with what it waits for.
inline void World::try_copy(int32_t index) {
    const Link &link = links_[index];
    Queue &queue = queues_[link.queue];
    if (queue.waiting.empty() || queue.free.empty()) return;
    const Transfer head = transfers_[queue.waiting.front()];
    Rank &rank = ranks_[link.rank];
    const Call again{What::LOOK_LINK, index};
    if (head.issued > clock_.now) {
        clock_.at(head.issued, again);
    } else if (lacks_source(head)) {
        agenda_.wake(queue.watchers);
        if (!must_wait(actions(rank).ends[head.action], rank, head.lap, again)) {
            const Moves &moves = actions(rank).moves[head.action][0];
            wait_for_moves(rank, head.tensor, moves_due(rank, moves, head.lap), head.key, again);
        }
    } else if (rank.held[place(rank, link.target, head.tensor)]) {
        start_copy(index);
    } else {
        const int64_t size = program(rank).size_bytes[head.tensor];
        const int32_t number = static_cast<int32_t>(streams_.size()) + index;
        if (!size || admit(rank.tiers[link.target], number, head.key | COPIES, size)) {
            hold(link.rank, link.target, head.tensor);
            start_copy(index);
        } else {
            agenda_.wake(queue.watchers);
        }
    }
}

inline void World::start_copy(int32_t index) {
    const Link &link = links_[index];
    Queue &queue = queues_[link.queue];
    const int32_t number = link.first_channel + queue.free.top();
    queue.free.pop();
    Channel &channel = channels_[number];
    channel.transfer = queue.waiting.front(), channel.start = clock_.now;
    queue.waiting.pop_front();
    queue.running.push_back(number);
    reach(queue.started);
    agenda_.wake(queue.watchers);
    const Program &p = program(ranks_[link.rank]);
    const Time lead = p.lead_ns[p.timing_of[link.index * p.tensors + transfers_[channel.transfer].tensor]];
    if (link.path == NONE || lead)
        clock_.at(channel.start + lead, {What::LEAD_OVER, number});
    else
        join_copy(number);
    if (!queue.free.empty()) look_at_link(index);
}

inline void World::join_copy(int32_t number) {
    const Transfer &transfer = transfers_[channels_[number].transfer];
    const Link &link = links_[transfer.link];
    const Program &p = program(ranks_[link.rank]);
    const Wide work = work_of(p.size_bytes[transfer.tensor], network.paths[link.path].unit);
    const int64_t cap = p.cap[p.timing_of[link.index * p.tensors + transfer.tensor]];
    network.join(link.path, cap, work, transfer.key, {What::END_COPY, number});
}

// Begin the flow once the latency is over; a copy without any work left ends now.
inline void World::end_lead(int32_t number) {
    const Transfer &transfer = transfers_[channels_[number].transfer];
    const Link &link = links_[transfer.link];
    const int64_t size = program(ranks_[link.rank]).size_bytes[transfer.tensor];
    const bool flows = link.path != NONE && size && network.paths[link.path].unit != ENDLESS;
    flows ? join_copy(number) : end_copy(number);
}

// End a copy: make its target valid, free its channel, and let the next one start.
inline void World::end_copy(int32_t number) {
    const Channel channel = channels_[number];
    const Transfer transfer = transfers_[channel.transfer];
    const Link &link = links_[channel.link];
    Queue &queue = queues_[link.queue];
    Rank &rank = ranks_[link.rank];
    queue.running.erase(std::find(queue.running.begin(), queue.running.end(), number));
    queue.free.push(channel.index);
    spans.add(rank.number, COPY, transfer.tensor, link.index, channel.index, transfer.key & ISSUE_MASK, transfer.issued,
              channel.start, clock_.now);
    rank.valid[place(rank, link.target, transfer.tensor)] = 1;
    int32_t *at = &rank.first_transfer[transfer.tensor];
    while (*at != channel.transfer) at = &transfers_[*at].next;
    *at = transfer.next;
    transfers_.give(channel.transfer);
    end_move(rank, transfer.tensor);
    agenda_.wake(queue.watchers);
    look_at_link(channel.link);
}

}  // namespace replay
