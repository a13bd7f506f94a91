// The ledger: one root cause for every nanosecond that a stream waits, found by walking along what each thing waits for.
#pragma once

#include "world.hpp"

namespace replay {

// Find the cause of the current wait, if there is one; begin a new part if the cause has changed.
inline void World::look_at_account(int32_t index) {
    Stream &stream = streams_[index];
    if (stream.is_running) return;
    const Reason reason = find_reason(index);
    if (!(reason != stream.account.reason)) return;
    close_part(stream.account);
    stream.account.reason = reason;
    stream.account.is_open = true;
}

inline void World::close_part(Account &account) {
    if (account.reason.cause != NONE && clock_.now > account.since)
        account.parts.push_back({account.since, clock_.now, account.reason});
    account.since = clock_.now;
}

// Write the parts of a wait, which ends as the stream starts this op.
inline void World::end_wait(Stream &stream, Key key, int32_t op) {
    close_part(stream.account);
    for (const Part &part : stream.account.parts) add_wait(stream, key, op, part);
    stream.account.parts.clear();
    stream.account.reason = {};
    stream.account.is_open = false;
}

inline void World::add_wait(const Stream &stream, Key key, int32_t op, const Part &part) {
    const Reason &why = part.reason;
    if (settings_.keeps_waits)
        waits.add(ranks_[stream.rank].number, stream.index, op, key & ISSUE_MASK, part.start, part.end, why.cause, why.tensor, why.on, why.blocker);
}

// Look again when the thing that these watchers watch changes.
inline void World::watch(int32_t stream, std::vector<int32_t> &watchers) {
    if (std::find(watchers.begin(), watchers.end(), stream) == watchers.end()) watchers.push_back(stream);
}

// Find the root cause of a stream's wait; none if it has nothing left to run.
inline Reason World::find_reason(int32_t index) {
    const Rank &rank = ranks_[streams_[index].rank];
    const Actions &table = actions(rank);
    std::vector<int32_t> passed;
    int32_t at = index;
    while (std::find(passed.begin(), passed.end(), at) == passed.end()) {
        Stream &stream = streams_[at];
        if (!passed.empty()) {
            watch(index, stream.watchers);
            if (stream.is_running) return reason_of_running(index, stream);
        }
        if (stream.queue.empty() || stream.queue.front().issued > clock_.now) return reason_of_host(index);
        passed.push_back(at);
        const Queued &head = stream.queue.front();
        if (const Wait *wait = unmet(table.ends[head.action], rank, head.lap)) {
            at = rank.first_stream + wait->count / 2;
            continue;
        }
        if (const Lacked *lack = lacked(stream)) return reason_of_tensor(index, lack->tensor, head.key);
        if (table.line[head.action].empty() || !room_of(stream)) continue;
        // of what is ahead of it in line, go on to the one whose first action was issued first
        Key first = NO_COPY;
        int32_t copy = NONE;
        for (const Wait &wait : table.line[head.action]) {
            if (unmet({&wait, &wait + 1}, rank, head.lap) == nullptr) continue;
            const int32_t queue = wait.count - 2 * program(rank).streams;
            const int32_t ahead = queue < 0 ? rank.first_stream + wait.count / 2 : NONE;
            const int32_t transfer = queue < 0 ? NONE : queues_[rank.first_queue + queue].waiting.front();
            const Key key = queue < 0 ? streams_[ahead].queue.front().key : transfers_[transfer].key;
            if (key >= first) continue;
            first = key, copy = transfer;
            if (ahead != NONE) at = ahead;
        }
        if (copy != NONE) return reason_of_tensor(index, transfers_[copy].tensor, head.key);
    }
    return {CAPACITY, NONE, program(rank).compute_tier, NONE};
}

// Return the cause of a wait for an op that another stream runs.
inline Reason World::reason_of_running(int32_t index, Stream &other) {
    const Rank &rank = ranks_[other.rank];
    const int32_t op = actions(rank).actions[other.running.action].item;
    if (other.meeting == NONE)
        return program(rank).is_collective[op] ? Reason{COLLECTIVE, NONE, NONE, op} : Reason{ORDER, NONE, NONE, NONE};
    Meeting &meeting = meetings[other.meeting];
    watch(index, meeting.watchers);
    if (meeting.has_begun()) return {COLLECTIVE, NONE, NONE, op};
    return {PEER, NONE, meeting.members[meeting.awaited], NONE};
}

// Return the cause of a wait for an op that the host has not issued; none if it has issued all.
inline Reason World::reason_of_host(int32_t index) {
    Rank &rank = ranks_[streams_[index].rank];
    if (streams_[index].queue.empty() && rank.is_finished) return {};
    watch(index, rank.host_watchers);
    if (rank.awaited != NONE) return reason_of_tensor(index, rank.awaited, NO_COPY);
    return {rank.host_now > clock_.now ? HOST : ORDER, NONE, NONE, NONE};
}

// Return the cause of a wait for a tensor: follow its first copy, and what that waits for.
inline Reason World::reason_of_tensor(int32_t index, int32_t lack, Key before) {
    const Rank &rank = ranks_[streams_[index].rank];
    int32_t tensor = lack, first;
    while ((first = first_transfer(rank, tensor, before)) != NONE) {
        const Link &link = links_[transfers_[first].link];
        Queue &queue = queues_[link.queue];
        watch(index, queue.watchers);
        for (int32_t running : queue.running)
            if (channels_[running].transfer == first) return {TRANSFER, lack, link.index, tensor};
        if (queue.free.empty()) {
            const Channel &under_way = channels_[queue.running.front()];
            return {TRANSFER, lack, links_[under_way.link].index, transfers_[under_way.transfer].tensor};
        }
        const Transfer &head = transfers_[queue.waiting.front()];
        before = head.key;
        tensor = head.tensor;
        if (unmet(actions(rank).line[head.action], rank, head.lap) != nullptr) break;
        if (!lacks_source(head)) return {CAPACITY, lack, links_[head.link].target, tensor};
    }
    return {ORDER, lack, NONE, NONE};
}

}  // namespace replay
