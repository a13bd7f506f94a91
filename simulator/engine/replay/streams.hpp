// Compute streams: each runs computes one after another, in issue order.
#pragma once

#include "world.hpp"

namespace replay {

// Ask for a try of the first compute in this round.
inline void World::look_at_stream(int32_t index) {
    const Stream &stream = streams_[index];
    if (!stream.queue.empty()) agenda_.consider(index, stream.queue.front().key);
}

inline Time World::duration(const Rank &rank, const Action &action) const {
    const Program &p = program(rank);
    return action.draw == NONE ? p.duration_ns[action.item] : p.drawn_ns[action.draw];
}

// Start the first compute, or register with what it waits for.
inline void World::try_compute(int32_t index) {
    Stream &stream = streams_[index];
    if (stream.is_running || stream.queue.empty()) return;
    const Queued head = stream.queue.front();
    const Rank &rank = ranks_[stream.rank];
    const Action &action = actions(rank).actions[head.action];
    const bool is_early = head.issued > clock_.now;
    if (is_early) clock_.at(head.issued, {What::LOOK_STREAM, index});
    if (is_early || !(action.is_free || may_start(index))) {
        agenda_.look_at(index);
        agenda_.wake(stream.watchers);
        return;
    }
    stream.queue.pop_front();
    stream.running = head, stream.is_running = true, stream.start = clock_.now;
    if (stream.account.is_open) end_wait(stream, head.key, action.item);
    agenda_.wake(stream.watchers);
    begin_kernel(index);
    reach(stream.started);
}

// Take room and places for the first compute if nothing else is lacking; register with what it waits for.
inline bool World::may_start(int32_t index) {
    Stream &stream = streams_[index];
    Rank &rank = ranks_[stream.rank];
    const Queued &head = stream.queue.front();
    const Actions &table = actions(rank);
    const Program &p = program(rank);
    const Call again{What::LOOK_STREAM, index};
    if (must_wait(table.ends[head.action], rank, head.lap, again)) return false;
    if (const Lacked *lack = lacked(stream)) {
        wait_for_moves(rank, lack->tensor, lack->moves, head.key, again);
        return false;
    }
    const int64_t room = room_of(stream);
    if (room && must_wait(table.line[head.action], rank, head.lap, again)) return false;
    if (room && !admit(rank.tiers[p.compute_tier], index, head.key, room)) return false;
    for (int32_t tensor : table.writes[head.action]) hold(stream.rank, p.compute_tier, tensor);
    const int32_t op = table.actions[head.action].item;
    if (const int64_t workspace = p.workspace_bytes[op])
        residencies.add(clock_.now, rank.number, p.compute_tier, -1 - op, workspace);
    stream.knows_lacked = false;
    return true;
}

// End the running compute, and let the next one start.
inline void World::finish_compute(int32_t index) {
    Stream &stream = streams_[index];
    Rank &rank = ranks_[stream.rank];
    const Program &p = program(rank);
    const Queued &ran = stream.running;
    const Action &action = actions(rank).actions[ran.action];
    stream.is_running = false;
    spans.add(rank.number, COMPUTE, action.item, stream.index, 0, ran.key & ISSUE_MASK, ran.issued, stream.start, clock_.now);
    computes_ended++;
    if (!action.is_free) {
        if (const int64_t workspace = p.workspace_bytes[action.item]) {
            residencies.add(clock_.now, rank.number, p.compute_tier, -1 - action.item, -workspace);
            release(rank.tiers[p.compute_tier], workspace);
        }
        for (int32_t tensor : actions(rank).writes[ran.action])  // valid here, and stale elsewhere
            for (int32_t tier = 0; tier < p.tiers; tier++)
                rank.valid[place(rank, tier, tensor)] = tier == p.compute_tier;
    }
    reach(stream.ended);
    agenda_.wake(stream.watchers);
    if (stream.queue.empty())
        agenda_.look_at(index);
    else
        look_at_stream(index);
}

// Return the first tensor that the first compute lacks, as its earlier moves have not ended or it is to be read and not
// valid; none if there is none. First is the one whose copy was issued first. What is there stays until the compute runs.
inline const Lacked *World::lacked(Stream &stream) {
    const Rank &rank = ranks_[stream.rank];
    const Queued &head = stream.queue.front();
    const Actions &table = actions(rank);
    const uint8_t *valid = rank.valid.data() + place(rank, program(rank).compute_tier, 0);
    const auto is_missing = [&](const Lacked &lack) {
        return rank.moves_ended[lack.tensor] < lack.moves || (lack.is_read && !valid[lack.tensor]);
    };
    if (!stream.knows_lacked) {
        const Span<int32_t> reads = table.reads[head.action];
        std::map<int32_t, int64_t> due;
        for (const Moves &moves : table.moves[head.action])
            if (const int64_t goal = moves_due(rank, moves, head.lap); rank.moves_ended[moves.tensor] < goal)
                due[moves.tensor] = goal;
        for (int32_t tensor : reads)
            if (!valid[tensor]) due.emplace(tensor, NEVER);
        stream.lacked.clear();
        for (const auto &[tensor, moves] : due) {
            const bool is_read = std::find(reads.begin(), reads.end(), tensor) != reads.end();
            stream.lacked.push_back({last_transfer(rank, tensor, head.key), tensor, moves, is_read});
        }
        std::sort(stream.lacked.begin(), stream.lacked.end());
        stream.knows_lacked = true;
    }
    while (!stream.lacked.empty() && !is_missing(stream.lacked.back())) stream.lacked.pop_back();
    return stream.lacked.empty() ? nullptr : &stream.lacked.back();
}

// Return the room that the first compute takes: new places for what it writes, and its workspace [B].
inline int64_t World::room_of(const Stream &stream) const {
    const Rank &rank = ranks_[stream.rank];
    const Program &p = program(rank);
    const int32_t action = stream.queue.front().action;
    int64_t room = p.workspace_bytes[actions(rank).actions[action].item];
    for (int32_t tensor : actions(rank).writes[action])
        if (!rank.held[place(rank, p.compute_tier, tensor)]) room += p.size_bytes[tensor];
    return room;
}

}  // namespace replay
