// The ledger: one root cause for every nanosecond that a stream waits, found by a walk along what things wait for.
#pragma once

#include "links.hpp"

namespace replay {

class Ledger : public Links {
protected:
    // Find the cause of a stream's current wait, if there is one; begin a new part if the cause has changed.
    void look_at_wait(int32_t index) {
        Stream &stream = streams_[index];
        if (stream.is_running) return;
        const Reason reason = find_reason(index);
        if (reason == stream.reason) return;
        close_part(stream);
        stream.reason = reason;
        stream.waits = true;
    }

    // Write the parts of a wait, which ends as the stream starts its running op.
    void end_wait(Stream &stream) {
        if (!stream.waits) return;
        close_part(stream);
        for (const Part &part : stream.parts) add_wait(stream, part);
        stream.parts.clear();
        stream.reason = {};
        stream.waits = false;
    }

    // Write a wait of the running op.
    void add_wait(const Stream &stream, const Part &part) {
        const Rank &rank = ranks_[stream.rank];
        const Reason &why = part.reason;
        waits.add(rank.number, stream.index, rank.action(stream.running).item, stream.running.key & ISSUE_MASK,
                  part.start, part.end, why.cause, why.tensor, why.on, why.blocker);
    }

private:
    void close_part(Stream &stream) {
        if (stream.reason.cause != NONE && clock.now > stream.since)
            stream.parts.push_back({stream.since, clock.now, stream.reason});
        stream.since = clock.now;
    }

    // Look again when the thing that these watchers watch changes.
    static void watch(int32_t stream, std::vector<int32_t> &watchers) {
        if (std::find(watchers.begin(), watchers.end(), stream) == watchers.end()) watchers.push_back(stream);
    }

    // Find the root cause of a stream's wait; none if it has nothing left to run.
    Reason find_reason(int32_t index) {
        const Rank &rank = ranks_[streams_[index].rank];
        std::vector<int32_t> passed;
        for (int32_t at = index; std::find(passed.begin(), passed.end(), at) == passed.end();) {
            Stream &stream = streams_[at];
            if (!passed.empty()) watch(index, stream.watchers);
            if (!passed.empty() && stream.is_running) return reason_of_running(index, stream);
            if (stream.queue.empty() || stream.queue.front().issued > clock.now) return reason_of_host(index);
            passed.push_back(at);
            const Queued &head = stream.queue.front();
            const Span<Wait> line = rank.actions->line[head.action];
            if (const Wait *wait = unmet(rank.actions->ends[head.action], rank, head.lap)) {
                at = rank.first_stream + wait->count / 2;
            } else if (const Lacked *lack = lacked(stream)) {
                return reason_of_tensor(index, lack->tensor, head.key);
            } else if (!line.empty() && room_of(stream)) {
                const auto [next, copy] = first_in_line(line, rank, head.lap, at);
                if (copy != NONE) return reason_of_tensor(index, transfers_[copy].tensor, head.key);
                at = next;
            }
        }
        return {CAPACITY, NONE, rank.program->compute_tier, NONE};
    }

    // Of what is ahead in line, return the stream, or the copy, that was issued first; the same stream if none is.
    std::pair<int32_t, int32_t> first_in_line(Span<Wait> line, const Rank &rank, int32_t lap, int32_t stream) const {
        std::pair<int32_t, int32_t> first{stream, NONE};
        Key lowest = NO_COPY;
        for (const Wait &wait : line) {
            if (unmet({&wait, &wait + 1}, rank, lap) == nullptr) continue;
            const int32_t queue = wait.count - 2 * rank.program->streams, ahead = rank.first_stream + wait.count / 2;
            const int32_t copy = queue < 0 ? NONE : queues_[rank.first_queue + queue].waiting.front();
            const Key key = queue < 0 ? streams_[ahead].queue.front().key : transfers_[copy].key;
            if (key < lowest) first = {queue < 0 ? ahead : stream, copy};
            lowest = std::min(lowest, key);
        }
        return first;
    }

    // Return the cause of a wait for an op that another stream runs.
    Reason reason_of_running(int32_t index, const Stream &other) {
        const Rank &rank = ranks_[other.rank];
        const int32_t op = rank.action(other.running).item;
        const Reason under_way{COLLECTIVE, NONE, NONE, op};
        if (other.meeting == NONE) return rank.program->is_collective[op] ? under_way : Reason{ORDER, NONE, NONE, NONE};
        Meeting &meeting = meetings[other.meeting];
        watch(index, meeting.watchers);
        return meeting.has_begun() ? under_way : Reason{PEER, NONE, meeting.members[meeting.awaited], NONE};
    }

    // Return the cause of a wait for an op that the host has not issued; none if it has issued all.
    Reason reason_of_host(int32_t index) {
        Rank &rank = ranks_[streams_[index].rank];
        if (streams_[index].queue.empty() && rank.is_finished) return {};
        watch(index, rank.watchers);
        if (rank.awaited != NONE) return reason_of_tensor(index, rank.awaited, NO_COPY);
        return {rank.now > clock.now ? HOST : ORDER, NONE, NONE, NONE};
    }

    // Return the cause of a wait for a tensor: follow its first copy, and what that waits for.
    Reason reason_of_tensor(int32_t index, int32_t lack, Key before) {
        const Rank &rank = ranks_[streams_[index].rank];
        int32_t tensor = lack, first;
        while ((first = first_transfer(rank.tensors[tensor], before)) != NONE) {
            const Link &link = links_[transfers_[first].link];
            Queue &queue = queues_[link.queue];
            watch(index, queue.watchers);
            for (int32_t running : queue.running)
                if (channels_[running].transfer == first) return {TRANSFER, lack, link.index, tensor};
            if (queue.free.empty()) {
                const Channel &busy = channels_[queue.running.front()];
                return {TRANSFER, lack, links_[busy.link].index, transfers_[busy.transfer].tensor};
            }
            const Transfer &head = transfers_[queue.waiting.front()];
            before = head.key, tensor = head.tensor;
            if (unmet(rank.actions->line[head.action], rank, head.lap) != nullptr) break;
            if (!lacks_source(head)) return {CAPACITY, lack, links_[head.link].target, tensor};
        }
        return {ORDER, lack, NONE, NONE};
    }
};

}  // namespace replay
