// Hosts: each issues the actions of its rank in order, pays for each, and waits only at a sync or for a full queue.
#pragma once

#include "streams.hpp"

namespace replay {

class Hosts : public Streams {
protected:
    // Take, pay for and issue actions until one has to wait for the device. A host runs ahead of the clock: each action
    // takes effect at its time of issue.
    void advance_host(int32_t number) {
        Rank &rank = ranks_[number];
        const Program &p = *rank.program;
        rank.awaited = NONE;
        rank.asked++;
        rank.now = std::max(rank.now, clock.now);
        if (rank.pending == NONE || issue(number, rank.pending)) {
            rank.pending = NONE;
            while (rank.pending == NONE && has_next(rank)) {
                const size_t action = rank.position++;
                rank.now += p.price_ns[p.price_ns.size() == 1 ? 0 : action];
                if (rank.now > LONGEST) throw NotCovered{};
                if (!issue(number, static_cast<int32_t>(action))) rank.pending = static_cast<int32_t>(action);
            }
            rank.is_finished = rank.pending == NONE;
        }
        agenda.wake(rank.watchers);
    }

    void fill_queue(int32_t number, int32_t asked) {
        if (asked != ranks_[number].asked) return;
        const int64_t excess = unstarted(ranks_[number]) - queue_depth / 2;
        excess > 0 ? wait_for_starts(number, excess) : advance_host(number);
    }

    // Free a place once all earlier actions that name the tensor have ended: first its users, then its moves.
    void try_detach(int32_t index) {
        const Detach detach = detaches_[index];
        const Rank &rank = ranks_[detach.rank];
        const Moves &moves = rank.actions->moves[detach.action][0];
        const Call again{What::TRY_DETACH, index};
        if (must_wait(rank.actions->ends[detach.action], rank, detach.lap, again)) return;
        if (must_wait_for_moves(ranks_[detach.rank], moves, detach, again)) return;
        const Call free{What::FREE_PLACE, index};
        detach.issued > clock.now ? clock.at(detach.issued, free) : agenda.frees.emplace(detach.key, index);
    }

    Key key_of_detach(int32_t index) { return detaches_[index].key; }

    // Free the place of the detach that was issued first, of those that may act.
    void free_first() {
        const int32_t index = agenda.frees.top().second;
        const Detach detach = detaches_[index];
        agenda.frees.pop();
        detaches_.give(index);
        const Rank &rank = ranks_[detach.rank];
        free_place(ranks_[detach.rank], rank.actions->moves[detach.action][0].tensor, rank.action(detach).where);
    }

private:
    static bool has_next(Rank &rank) {
        if (rank.position < rank.actions->actions.size()) return true;
        if (!rank.program->has_laps() || rank.lap + 1 == rank.program->repeats) return false;
        rank.lap++;
        rank.position = 0;
        return !rank.actions->actions.empty();
    }

    // Issue an action; return whether the host could.
    bool issue(int32_t number, int32_t index) {
        Rank &rank = ranks_[number];
        const Queued queued{rank.next_key, rank.now, index, rank.lap};
        const Action &action = rank.action(queued);
        if (action.kind == COMPUTE) {
            if (!rank.credit && !has_credit(number)) return false;
            rank.credit--;
            Stream &stream = streams_[rank.first_stream + action.where];
            stream.queue.push_back(queued);
            if (stream.queue.size() == 1 && !stream.is_running) look_at_stream(rank.first_stream + action.where);
        } else if (action.kind == COPY) {
            const int32_t link = rank.first_link + action.where;
            const int32_t added = transfers_.take({queued, link, action.item, NONE});
            add_transfer(rank.tensors[action.item], added);
            Queue &queue = queues_[links_[link].queue];
            queue.waiting.push_back(added);
            if (!queue.free.empty() && queue.waiting.size() == 1) look_at_link(link);
        } else if (action.kind == DETACH) {
            try_detach(detaches_.take({queued, number}));
        } else if (!is_past_sync(number, queued)) {
            return false;
        }
        rank.next_key++;
        return true;
    }

    // Return whether the host is ahead of the clock; if so, go on when the clock catches up.
    bool is_ahead(int32_t number) {
        if (ranks_[number].now <= clock.now) return false;
        clock.at(ranks_[number].now, {What::ADVANCE_HOST, number});
        return true;
    }

    // Return whether all that a sync waits for has ended; if not, look again when an action on its tensor ends.
    bool is_past_sync(int32_t number, const Queued &sync) {
        if (is_ahead(number)) return false;
        Rank &rank = ranks_[number];
        const Moves &moves = rank.actions->moves[sync.action][0];
        const Call again{What::ADVANCE_HOST, number};
        const bool waits = must_wait(rank.actions->ends[sync.action], rank, sync.lap, again) ||
                           must_wait_for_moves(rank, moves, sync, again);
        rank.awaited = waits ? moves.tensor : NONE;
        return !waits;
    }

    bool must_wait_for_moves(Rank &rank, const Moves &moves, const Queued &queued, Call again) {
        const int64_t due = rank.moves_due(moves, queued.lap);
        const bool waits = rank.tensors[moves.tensor].moves_ended < due;
        if (waits) wait_for_moves(rank.tensors[moves.tensor], due, queued.key, again);
        return waits;
    }

    // Return whether a compute may be issued; a full queue is filled up once half of it has started.
    bool has_credit(int32_t number) {
        Rank &rank = ranks_[number];
        const int64_t ahead = unstarted(rank);
        rank.credit = queue_depth - ahead;
        if (!rank.credit && !is_ahead(number)) wait_for_starts(number, ahead - queue_depth / 2);
        return rank.credit > 0;
    }

    int64_t unstarted(const Rank &rank) const {
        int64_t computes = 0;
        for (int32_t i = 0; i < rank.program->streams; i++) computes += size_of(streams_[rank.first_stream + i].queue);
        return computes;
    }

    // Look again at the latest when so many more computes have started: then some stream has started its share. The
    // first stream that gets there cancels the looks at the others.
    void wait_for_starts(int32_t number, int64_t excess) {
        Rank &rank = ranks_[number];
        const int32_t streams = rank.program->streams;
        const Call look{What::FILL_QUEUE, number, ++rank.asked};
        for (int32_t i = 0; i < streams; i++) {
            Count &started = counts_[streams_[rank.first_stream + i].started];
            started.waiters.push({started.reached + (excess + streams - 1) / streams, clock.put++, look});
        }
    }
};

}  // namespace replay
