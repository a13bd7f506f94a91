// Flows that share bandwidth, and end when their service is done.
#pragma once

#include "clock.hpp"
#include "sharing.hpp"

namespace replay {

class Network {
public:
    std::vector<Resource> resources;
    std::vector<Path> paths;
    Rows<4> rates;

    Network(Clock &clock, Agenda &agenda) : clock_(clock), agenda_(agenda) {}

    void join(int32_t path, int64_t cap, Wide work, Key key, Call end) {
        int32_t found = NONE;
        for (int32_t pipe : paths[path].pipes)
            if (pipes_[pipe].cap == cap) found = pipe;
        if (found == NONE) found = open(path, cap);
        pipes_[found].tags.push({pipes_[found].advance(clock_.now) + work, key, end});
        touch(found);
    }

    // Return the ends of the flows of a pipe that are done by now; none if its end was put off.
    std::vector<Call> take_ended(int32_t index, int32_t life) {
        std::vector<Call> ended;
        Pipe &pipe = pipes_[index];
        if (pipe.life != life || pipe.due != clock_.now) return ended;
        pipe.due = NONE;
        const Wide reading = pipe.advance(clock_.now);
        for (; !pipe.tags.empty() && pipe.tags.top().reading <= reading; pipe.tags.pop())
            ended.push_back(pipe.tags.top().end);
        touch(index);
        if (pipe.tags.empty()) close(pipe, index);
        return ended;
    }

    // Share the resources again among all pipes connected with a change, and put off their next ends.
    void reset_rates() {
        std::vector<int32_t> seen, watched;
        for (int32_t touched : touched_) {
            pipes_[touched].is_touched = false;
            watch(pipes_[touched], watched);
            const std::vector<int32_t> connected = connect(touched, seen);
            if (!connected.empty()) share(connected, watched);
        }
        for (int32_t pipe : seen) pipes_[pipe].is_seen = false;
        for (int32_t pipe : touched_) {
            if (!pipes_[pipe].tags.empty()) continue;
            pipes_[pipe].life++;
            pipes_.give(pipe);
        }
        touched_.clear();
        for (int32_t index : watched) {
            resources[index].is_watched = false;
            rates.add(clock_.now, resources[index].bus, resources[index].instance, rate_over(index));
        }
    }

private:
    struct Tag {
        Wide reading;  // of the pipe's clock, at which the flow ends
        Key key;       // decides among flows that end together
        Call end;
        bool operator<(const Tag &other) const { return std::tie(reading, key) > std::tie(other.reading, other.key); }
    };

    // All flows of one path with one cap: they always have the same rate, so one clock of service serves them all.
    struct Pipe {
        int32_t path;
        int64_t cap, rate = 0;
        Time since = 0, due = NONE;
        Wide clock = 0;
        int32_t life = 0;  // pipes are used again; an event of an earlier life does nothing
        bool is_touched = false, is_seen = false;
        std::priority_queue<Tag> tags{};

        int64_t flows() const { return static_cast<int64_t>(tags.size()); }

        Wide advance(Time now) {
            clock += Wide{rate} * (now - std::exchange(since, now));
            return clock;
        }
    };

    Clock &clock_;
    Agenda &agenda_;
    Pool<Pipe> pipes_;
    std::vector<int32_t> touched_;

    int32_t open(int32_t path, int64_t cap) {
        Pipe pipe{path, cap};
        if (!pipes_.spare.empty()) pipe.life = pipes_[pipes_.spare.back()].life;
        const int32_t index = pipes_.take(pipe);
        paths[path].pipes.push_back(index);
        for (const Use &use : paths[path].uses) resources[use.resource].pipes.push_back(index);
        return index;
    }

    void close(const Pipe &pipe, int32_t index) {
        const auto drop_from = [index](std::vector<int32_t> &pipes) {
            pipes.erase(std::find(pipes.begin(), pipes.end(), index));
        };
        drop_from(paths[pipe.path].pipes);
        for (const Use &use : paths[pipe.path].uses) drop_from(resources[use.resource].pipes);
    }

    void touch(int32_t pipe) {
        agenda_.resets_rates = true;
        if (!pipes_[pipe].is_touched) touched_.push_back(pipe);
        pipes_[pipe].is_touched = true;
    }

    void watch(const Pipe &pipe, std::vector<int32_t> &watched) {
        for (const Use &use : paths[pipe.path].uses) {
            Resource &resource = resources[use.resource];
            if (resource.bus == NONE || resource.is_watched) continue;
            resource.is_watched = true;
            watched.push_back(use.resource);
        }
    }

    // Return the pipes with flows that share resources with this one, directly or not; none if it was seen.
    std::vector<int32_t> connect(int32_t start, std::vector<int32_t> &seen) {
        std::vector<int32_t> connected, frontier{start}, reached;
        const auto go_on_to = [&frontier](const std::vector<int32_t> &pipes) {
            frontier.insert(frontier.end(), pipes.begin(), pipes.end());
        };
        while (!frontier.empty()) {
            const int32_t index = frontier.back();
            frontier.pop_back();
            Pipe &pipe = pipes_[index];
            if (std::exchange(pipe.is_seen, true)) continue;
            seen.push_back(index);
            if (!pipe.tags.empty()) connected.push_back(index);
            if (paths[pipe.path].is_even) go_on_to(paths[pipe.path].pipes);
            for (const Use &use : paths[pipe.path].uses) {
                if (std::exchange(resources[use.resource].is_reached, true)) continue;
                reached.push_back(use.resource);
                go_on_to(resources[use.resource].pipes);
            }
        }
        for (int32_t resource : reached) resources[resource].is_reached = false;
        return connected;
    }

    // Set the rates of connected pipes, and when the next flow of each ends.
    void share(const std::vector<int32_t> &connected, std::vector<int32_t> &watched) {
        std::vector<Share> shares;
        for (int32_t index : connected)
            shares.push_back({&paths[pipes_[index].path], pipes_[index].flows(), cap_of(pipes_[index])});
        set_max_min_rates(resources, shares);
        for (size_t i = 0; i < connected.size(); i++) {
            Pipe &pipe = pipes_[connected[i]];
            watch(pipe, watched);
            const Wide left = std::max(Wide{0}, pipe.tags.top().reading - pipe.advance(clock_.now));
            pipe.rate = shares[i].rate;
            const Wide takes = ceil_div(left, pipe.rate);
            if (takes > LONGEST) throw NotCovered{};
            const Time due = clock_.now + static_cast<Time>(takes);
            if (due != pipe.due) clock_.at(pipe.due = due, {What::PIPE_DUE, connected[i], pipe.life});
        }
    }

    int64_t cap_of(const Pipe &pipe) const {
        if (!paths[pipe.path].is_even) return pipe.cap;
        int64_t flows = 0;
        for (int32_t other : paths[pipe.path].pipes) flows += pipes_[other].flows();
        return std::min(pipe.cap, FULL_RATE / flows);
    }

    // The rate of all flows over a resource together [B/s], rounded down.
    int64_t rate_over(int32_t resource) const {
        Wide total = 0;
        for (int32_t index : resources[resource].pipes) {
            const Pipe &pipe = pipes_[index];
            for (const Use &use : paths[pipe.path].uses)
                if (use.resource == resource)
                    total += Wide{pipe.flows() * use.count} * pipe.rate * finite(paths[pipe.path].unit);
        }
        return static_cast<int64_t>(total / FULL_RATE);
    }
};

}  // namespace replay
