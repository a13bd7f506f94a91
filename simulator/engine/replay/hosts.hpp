// Hosts: each issues the actions of its rank in order, pays for each, and waits only at a sync, or if its queue is full.
#pragma once

#include "world.hpp"

namespace replay {

// Take, pay for and issue actions until one has to wait for the device. A host runs ahead of the clock: each action
// takes effect at its time of issue.
inline void World::advance_host(int32_t number) {
    Rank &rank = ranks_[number];
    const Program &p = program(rank);
    const size_t actions_of_lap = actions(rank).actions.size();
    rank.awaited = NONE;
    rank.asked++;
    rank.host_now = std::max(rank.host_now, clock_.now);
    if (rank.pending == NONE || issue(number, rank.pending)) {
        rank.pending = NONE;
        while (rank.pending == NONE) {
            if (rank.position == actions_of_lap) {
                if (!p.issues_in_laps || rank.lap + 1 == p.repeats) break;
                rank.lap++;
                rank.position = 0;
            }
            const size_t action = rank.position++;
            rank.host_now += p.price_ns[p.price_ns.size() == 1 ? 0 : action];
            if (!issue(number, static_cast<int32_t>(action))) rank.pending = static_cast<int32_t>(action);
        }
        rank.is_finished = rank.pending == NONE;
    }
    agenda_.wake(rank.host_watchers);
}

// Issue an action; return whether the host could.
inline bool World::issue(int32_t number, int32_t index) {
    Rank &rank = ranks_[number];
    const Action &action = actions(rank).actions[index];
    const Queued queued{rank.next_key, rank.host_now, index, rank.lap};
    if (action.kind == COMPUTE) {
        if (!rank.credit && !has_credit(number)) return false;
        rank.credit--;
        Stream &stream = streams_[rank.first_stream + action.where];
        stream.queue.push_back(queued);
        if (stream.queue.size() == 1 && !stream.is_running) look_at_stream(rank.first_stream + action.where);
    } else if (action.kind == COPY) {
        const int32_t link = rank.first_link + action.where, added = transfers_.take({queued, link, action.item, NONE});
        int32_t *at = &rank.first_transfer[action.item];
        while (*at != NONE) at = &transfers_[*at].next;
        *at = added;
        Queue &queue = queues_[links_[link].queue];
        queue.waiting.push_back(added);
        if (!queue.free.empty() && queue.waiting.size() == 1) look_at_link(link);
    } else if (action.kind == DETACH) {
        try_detach(detaches_.take({queued, number}));
    } else if (!is_past_sync(number, index)) {
        return false;
    }
    rank.next_key++;
    return true;
}

// Return whether the host is ahead of the clock; if so, go on when the clock catches up.
inline bool World::is_host_ahead(int32_t number) {
    const bool is_ahead = ranks_[number].host_now > clock_.now;
    if (is_ahead) clock_.at(ranks_[number].host_now, {What::ADVANCE_HOST, number});
    return is_ahead;
}

// Return whether all that a sync waits for has ended; if not, look again when an action on its tensor ends.
inline bool World::is_past_sync(int32_t number, int32_t index) {
    if (is_host_ahead(number)) return false;
    Rank &rank = ranks_[number];
    const Moves &moves = actions(rank).moves[index][0];
    const int64_t due = moves_due(rank, moves, rank.lap);
    const Call again{What::ADVANCE_HOST, number};
    if (must_wait(actions(rank).ends[index], rank, rank.lap, again)) {
        rank.awaited = moves.tensor;
    } else if (rank.moves_ended[moves.tensor] < due) {
        wait_for_moves(rank, moves.tensor, due, rank.next_key, again);
        rank.awaited = moves.tensor;
    }
    return rank.awaited == NONE;
}

// Return whether a compute may be issued; a full queue is filled up once half of it has started.
inline bool World::has_credit(int32_t number) {
    Rank &rank = ranks_[number];
    const int64_t ahead = unstarted(rank), depth = settings_.queue_depth;
    rank.credit = depth - ahead;
    if (!rank.credit && !is_host_ahead(number)) wait_for_starts(number, ahead - depth / 2);
    return rank.credit > 0;
}

inline int64_t World::unstarted(const Rank &rank) const {
    int64_t computes = 0;
    for (int32_t i = 0; i < program(rank).streams; i++) computes += streams_[rank.first_stream + i].queue.size();
    return computes;
}

// Look again at the latest when so many more computes have started: then some stream has started its share. The first
// stream that gets there cancels the looks at the others.
inline void World::wait_for_starts(int32_t number, int64_t excess) {
    Rank &rank = ranks_[number];
    const int32_t streams = program(rank).streams;
    const Call look{What::FILL_QUEUE, number, ++rank.asked};
    for (int32_t i = 0; i < streams; i++) {
        Count &started = counts_[streams_[rank.first_stream + i].started];
        started.waiters.put(started.reached + (excess + streams - 1) / streams, clock_.put++, look);
    }
}

inline void World::fill_queue(int32_t number, int32_t asked) {
    if (asked != ranks_[number].asked) return;
    const int64_t excess = unstarted(ranks_[number]) - settings_.queue_depth / 2;
    excess > 0 ? wait_for_starts(number, excess) : advance_host(number);
}

// Free a place once all earlier actions that name the tensor have ended: first its users, then its moves.
inline void World::try_detach(int32_t index) {
    const Detach detach = detaches_[index];
    Rank &rank = ranks_[detach.rank];
    const Moves &moves = actions(rank).moves[detach.action][0];
    const int64_t due = moves_due(rank, moves, detach.lap);
    const Call again{What::TRY_DETACH, index};
    if (must_wait(actions(rank).ends[detach.action], rank, detach.lap, again)) return;
    if (rank.moves_ended[moves.tensor] < due) {
        wait_for_moves(rank, moves.tensor, due, detach.key, again);
        return;
    }
    detaches_.give(index);
    const Call free{What::FREE_PLACE, detach.rank, moves.tensor, actions(rank).actions[detach.action].where};
    if (detach.issued > clock_.now)
        clock_.at(detach.issued, free);
    else
        agenda_.frees.push_back(free);
}

}  // namespace replay
