// Kernels: alone, beside others that share the device, or as collectives of ranks that meet.
#pragma once

#include "world.hpp"

namespace replay {

// Begin the running compute. A kernel ends with the last of its flows, and not before its time alone is over.
inline void World::begin_kernel(int32_t index) {
    Stream &stream = streams_[index];
    const Rank &rank = ranks_[stream.rank];
    const Program &p = program(rank);
    const Action &action = actions(rank).actions[stream.running.action];
    if (!p.call_of.empty() && p.call_of[action.item] != NONE) {
        arrive(rank.meetings[p.call_of[action.item]], index, p.collective_of[action.item]);
        return;
    }
    const Time takes = duration(rank, action);
    if (p.unit.empty() || p.unit[action.item] == NONE) {
        end_after(index, takes);
        return;
    }
    stream.until = clock_.now + takes;
    if (settings_.launch_ns)
        clock_.at(clock_.now + settings_.launch_ns, {What::BEGIN_KERNEL, index});
    else
        begin_kernel_flows(index);
}

// Let arithmetic flow through the unit of an op, and traffic through the memory, side by side.
inline void World::begin_kernel_flows(int32_t index) {
    Stream &stream = streams_[index];
    const Rank &rank = ranks_[stream.rank];
    const Program &p = program(rank);
    const Action &action = actions(rank).actions[stream.running.action];
    const auto wide = [](const int64_t *halves) { return Wide{halves[0]} * FULL_RATE + halves[1]; };
    const Wide arithmetic = wide(&p.unit_work[2 * action.item]);
    const Wide traffic = wide(action.draw == NONE ? &p.traffic[2 * action.item] : &p.drawn_traffic[2 * action.draw]);
    const Call end{What::END_KERNEL_FLOW, index};
    stream.flows_left = (arithmetic != 0) + (traffic != 0);
    const int32_t unit = rank.kernel_paths[p.unit[action.item]];
    if (arithmetic != 0) network.join(unit, p.unit_share[action.item], arithmetic, stream.running.key, end);
    if (traffic != 0) network.join(rank.kernel_paths.back(), settings_.memory_cap, traffic, stream.running.key, end);
    if (!stream.flows_left) end_after(index, stream.until - clock_.now);
}

inline void World::end_kernel_flow(int32_t index) {
    Stream &stream = streams_[index];
    if (--stream.flows_left == 0) end_after(index, std::max(Time{0}, stream.until - clock_.now));
}

// Let a member arrive at a meeting; the last to arrive starts the collective.
inline void World::arrive(int32_t index, int32_t stream, int32_t collective) {
    Meeting &meeting = meetings[index];
    if (meeting.arrivals.empty()) {
        meeting.stages = &stage_lists[stages_of[index * collectives + collective]];
        meeting.stage = meeting.awaited = 0;
        meeting.since = clock_.now;
        meeting.parts.clear();
        meeting.has_arrived.assign(meeting.members.size(), 0);
    }
    const auto member = std::lower_bound(meeting.members.begin(), meeting.members.end(), ranks_[streams_[stream].rank].number);
    meeting.has_arrived[member - meeting.members.begin()] = 1;
    meeting.arrivals.push_back({stream, clock_.now});
    streams_[stream].meeting = index;
    const size_t awaited = meeting.awaited;
    while (!meeting.has_begun() && meeting.has_arrived[meeting.awaited]) meeting.awaited++;
    if (meeting.awaited != awaited) {
        const Reason reason{PEER, NONE, meeting.members[awaited], NONE};
        if (clock_.now > meeting.since) meeting.parts.push_back({meeting.since, clock_.now, reason});
        meeting.since = clock_.now;
        agenda_.wake(meeting.watchers);
    }
    if (!meeting.has_begun()) return;
    for (const Meeting::Arrival &arrival : meeting.arrivals) {
        Stream &of = streams_[arrival.stream];
        const int32_t op = actions(ranks_[of.rank]).actions[of.running.action].item;
        of.start = clock_.now;
        for (const Part &part : meeting.parts)
            if (part.end > arrival.at)
                add_wait(of, of.running.key, op, {std::max(part.start, arrival.at), part.end, part.reason});
    }
    begin_stage(index);
}

// Begin the next stage: its hops, then the bytes of all its phases; or end the collective for all.
inline void World::begin_stage(int32_t index) {
    Meeting &meeting = meetings[index];
    if (meeting.stage == meeting.stages->size()) {
        agenda_.wake(meeting.watchers);
        for (const Meeting::Arrival &arrival : meeting.arrivals) {
            streams_[arrival.stream].meeting = NONE;
            end_after(arrival.stream, 0);
        }
        meeting.arrivals.clear();
        return;
    }
    const Phase &first = (*meeting.stages)[meeting.stage].front();
    const Time hops = first.hops * fabrics[first.fabric].latency;
    if (hops)
        clock_.at(clock_.now + hops, {What::BEGIN_FLOWS, index});
    else
        begin_flows(index);
}

// Start a flow for each member that sends something.
inline void World::begin_flows(int32_t index) {
    Meeting &meeting = meetings[index];
    meeting.flowing = 0;
    for (const Phase &phase : (*meeting.stages)[meeting.stage]) {
        const Fabric &fabric = fabrics[phase.fabric];
        const Wide work = work_of(phase.port_bytes, fabric.unit);
        for (const Meeting::Arrival &arrival : meeting.arrivals) {
            const Stream &stream = streams_[arrival.stream];
            if (meeting.sender != NONE && meeting.sender != ranks_[stream.rank].number) continue;
            const std::vector<int32_t> &own = ranks_[stream.rank].port_paths;
            const int32_t path = (meeting.sender == NONE ? own : meeting.sender_paths)[phase.fabric];
            network.join(path, fabric.cap, work, stream.running.key, {What::END_FLOW, index});
            meeting.flowing++;
        }
    }
}

inline void World::end_flow(int32_t index) {
    Meeting &meeting = meetings[index];
    if (--meeting.flowing) return;
    meeting.stage++;
    begin_stage(index);
}

}  // namespace replay
