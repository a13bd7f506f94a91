// Compute streams: each runs computes one after another, in issue order.
#pragma once

#include "kernels.hpp"

namespace replay {

class Streams : public Kernels {
protected:
    // Ask for a try of the first compute in this round.
    void look_at_stream(int32_t index) {
        if (!streams_[index].queue.empty()) agenda.consider(index, streams_[index].queue.front().key);
    }

    // Start the first compute, or register with what it waits for.
    void try_compute(int32_t index) {
        Stream &stream = streams_[index];
        if (stream.is_running || stream.queue.empty()) return;
        const Queued head = stream.queue.front();
        Rank &rank = ranks_[stream.rank];
        const bool is_early = head.issued > clock.now;
        if (is_early) clock.at(head.issued, {What::LOOK_STREAM, index});
        if (is_early || !(rank.action(head).is_free || may_start(stream, rank, head, {What::LOOK_STREAM, index}))) {
            agenda.look_at(index);
            return agenda.wake(stream.watchers);
        }
        stream.queue.pop_front();
        stream.running = head, stream.is_running = true, stream.start = clock.now;
        end_wait(stream);
        agenda.wake(stream.watchers);
        begin_kernel(index);
        reach(stream.started);
    }

    // End the running compute, and let the next one start.
    void finish_compute(int32_t index) {
        Stream &stream = streams_[index];
        Rank &rank = ranks_[stream.rank];
        const Program &p = *rank.program;
        const Queued &ran = stream.running;
        const int32_t op = rank.action(ran).item;
        stream.is_running = false;
        computes_ended++;
        spans.add(rank.number, COMPUTE, op, stream.index, 0, ran.key & ISSUE_MASK, ran.issued, stream.start, clock.now);
        if (const int64_t workspace = p.workspace_bytes[op]) {
            record(rank, p.compute_tier, -1 - op, -workspace);
            release(rank.tiers[p.compute_tier], workspace);
        }
        for (int32_t tensor : rank.actions->writes[ran.action]) {  // valid here, and stale elsewhere
            for (int32_t tier = 0; tier < p.tiers; tier++) rank.valid[rank.place(tier, tensor)] = 0;
            rank.valid[rank.place(p.compute_tier, tensor)] = 1;
        }
        reach(stream.ended);
        agenda.wake(stream.watchers);
        if (stream.queue.empty()) agenda.look_at(index);
        look_at_stream(index);
    }

private:
    // Take room and places for the first compute if nothing else is lacking; register with what it waits for.
    bool may_start(Stream &stream, Rank &rank, const Queued &head, Call again) {
        const Actions &actions = *rank.actions;
        const int32_t tier = rank.program->compute_tier, op = rank.action(head).item;
        if (must_wait(actions.ends[head.action], rank, head.lap, again)) return false;
        if (const Lacked *lack = lacked(stream)) {
            wait_for_moves(rank.tensors[lack->tensor], lack->moves, head.key, again);
            return false;
        }
        const int64_t room = room_of(stream);
        if (room && must_wait(actions.line[head.action], rank, head.lap, again)) return false;
        if (room && !admit(rank.tiers[tier], again.who, head.key, room)) return false;
        for (int32_t tensor : actions.writes[head.action]) hold(rank, tier, tensor);
        record(rank, tier, -1 - op, rank.program->workspace_bytes[op]);
        stream.knows_lacked = false;
        return true;
    }
};

}  // namespace replay
