// Kernels: alone, beside others that share the device, or as collectives of ranks that meet.
#pragma once

#include "ledger.hpp"

namespace replay {

class Kernels : public Ledger {
protected:
    // Begin the running compute. A kernel ends with the last of its flows, and not before its time alone is over.
    void begin_kernel(int32_t index) {
        Stream &stream = streams_[index];
        const Rank &rank = ranks_[stream.rank];
        const Program &p = *rank.program;
        const Action &action = rank.action(stream.running);
        if (!p.call_of.empty() && p.call_of[action.item] != NONE)
            return arrive(rank.meetings[p.call_of[action.item]], index, p.collective_of[action.item]);
        stream.until = clock.now + (action.draw == NONE ? p.duration_ns[action.item] : p.drawn_ns[action.draw]);
        if (p.unit.empty() || p.unit[action.item] == NONE) return end_at(index, stream.until);
        after(launch_ns, {What::BEGIN_KERNEL, index});
    }

    // Let arithmetic flow through the unit of an op, and traffic through the memory, side by side.
    void begin_kernel_flows(int32_t index) {
        Stream &stream = streams_[index];
        const Rank &rank = ranks_[stream.rank];
        const Program &p = *rank.program;
        const auto [op, _, draw, kind, is_free] = rank.action(stream.running);
        const auto wide = [](const int64_t *halves) { return Wide{halves[0]} * FULL_RATE + halves[1]; };
        const Wide work = wide(&p.unit_work[2 * op]);
        const Wide traffic = wide(draw == NONE ? &p.traffic[2 * op] : &p.drawn_traffic[2 * draw]);
        const Call end{What::END_KERNEL_FLOW, index};
        stream.flows_left = (work != 0) + (traffic != 0);
        if (work != 0) network.join(rank.kernels[p.unit[op]], p.unit_share[op], work, stream.running.key, end);
        if (traffic != 0) network.join(rank.kernels.back(), p.traffic_share[op], traffic, stream.running.key, end);
        if (!stream.flows_left) end_at(index, stream.until);
    }

    void end_kernel_flow(int32_t index) {
        if (--streams_[index].flows_left == 0) end_at(index, std::max(streams_[index].until, clock.now));
    }

    // Start a flow for each member of a meeting that sends something.
    void begin_flows(int32_t index) {
        Meeting &meeting = meetings[index];
        meeting.flowing = 0;
        for (const Phase &phase : (*meeting.stages)[meeting.stage]) {
            const Fabric &fabric = fabrics[phase.fabric];
            const Wide work = work_of(phase.port_bytes, fabric.unit);
            for (const Meeting::Arrival &arrival : meeting.arrivals) {
                const Stream &stream = streams_[arrival.stream];
                const Rank &rank = ranks_[stream.rank];
                if (meeting.sender != NONE && meeting.sender != rank.number) continue;
                const int32_t path = (meeting.sender == NONE ? rank.ports : meeting.sender_paths)[phase.fabric];
                network.join(path, fabric.cap, work, stream.running.key, {What::END_FLOW, index});
                meeting.flowing++;
            }
        }
    }

    void end_flow(int32_t index) {
        if (--meetings[index].flowing) return;
        meetings[index].stage++;
        begin_stage(index);
    }

private:
    void end_at(int32_t stream, Time time) { clock.at(time, {What::FINISH_COMPUTE, stream}); }

    void after(Time delay, Call what) { delay ? clock.at(clock.now + delay, what) : call(what); }

    // Let a member arrive at a meeting; the last to arrive starts the collective.
    void arrive(int32_t index, int32_t stream, int32_t collective) {
        Meeting &meeting = meetings[index];
        if (meeting.arrivals.empty()) {
            meeting.stages = &stage_lists[meeting.stages_of[collective]];
            meeting.stage = meeting.awaited = 0;
            meeting.since = clock.now;
            meeting.parts.clear();
            meeting.has_arrived.assign(meeting.members.size(), 0);
        }
        const auto &members = meeting.members;
        const int32_t number = ranks_[streams_[stream].rank].number;
        const auto member = std::lower_bound(members.begin(), members.end(), number) - members.begin();
        // a rank that is in two collectives of the group at once
        if (std::exchange(meeting.has_arrived[member], 1)) throw NotCovered{};
        meeting.arrivals.push_back({stream, clock.now});
        streams_[stream].meeting = index;
        const size_t awaited = meeting.awaited;
        while (!meeting.has_begun() && meeting.has_arrived[meeting.awaited]) meeting.awaited++;
        if (meeting.awaited != awaited) {
            if (clock.now > meeting.since)
                meeting.parts.push_back({meeting.since, clock.now, {PEER, NONE, members[awaited], NONE}});
            meeting.since = clock.now;
            agenda.wake(meeting.watchers);
        }
        if (!meeting.has_begun()) return;
        for (const auto &[of, arrived] : meeting.arrivals) {
            streams_[of].start = clock.now;
            for (const auto &[start, end, reason] : meeting.parts)
                if (end > arrived) add_wait(streams_[of], {std::max(start, arrived), end, reason});
        }
        begin_stage(index);
    }

    // Begin the next stage: its hops, then the bytes of all its phases; or end the collective for all.
    void begin_stage(int32_t index) {
        Meeting &meeting = meetings[index];
        if (meeting.stage < meeting.stages->size()) {
            const Phase &first = (*meeting.stages)[meeting.stage].front();
            return after(first.hops * fabrics[first.fabric].latency, {What::BEGIN_FLOWS, index});
        }
        agenda.wake(meeting.watchers);
        for (const auto &[member, _] : meeting.arrivals) {
            streams_[member].meeting = NONE;
            end_at(member, clock.now);
        }
        meeting.arrivals.clear();
    }
};

}  // namespace replay
