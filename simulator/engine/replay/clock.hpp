// The order of events: those of the clock, then all frees of an instant, then its grants and starts by (rank, issue).
#pragma once

#include <deque>
#include <queue>
#include <tuple>

#include "basics.hpp"

namespace replay {

enum class What : int32_t {
    FINISH_COMPUTE,   // of a stream
    LOOK_STREAM,      // try a stream's first compute
    LOOK_LINK,        // try the first copy of a link's queue
    LEAD_OVER,        // of a channel: its latency is over, or its copy, if nothing slows that down
    END_COPY,         // of a channel
    ADVANCE_HOST,     // of a rank
    FILL_QUEUE,       // of a rank, unless it has asked again (`item`) since
    TRY_DETACH,       // a detach that waits
    FREE_PLACE,       // a detach that acts
    PIPE_DUE,         // a pipe, in its life `item`
    BEGIN_FLOWS,      // of a meeting
    END_FLOW,         // of a meeting
    BEGIN_KERNEL,     // of a stream: its launch is over
    END_KERNEL_FLOW,  // of a stream
};

// Something that is to happen: at a time, once a count is reached, or as a flow ends.
struct Call {
    What what;
    int32_t who, item = 0, tier = 0;
};

// A call, and when it is due: at a time, or a count; of equals the one that was put in first comes first.
struct Due {
    int64_t when, order;
    Call call;
    bool operator<(const Due &other) const { return when != other.when ? when > other.when : order > other.order; }
};
using Schedule = std::priority_queue<Due>;

struct Clock {
    Time now = 0;
    Schedule events;
    int64_t put = 0;  // numbers what is due

    void at(Time time, Call call) {
        if (time > LONGEST) throw NotCovered{};
        events.push({time, put++, call});
    }
};

// What to try in the present round of an instant. Heads (streams, then links) are numbered through.
struct Agenda {
    using Head = std::pair<Key, int32_t>;
    std::priority_queue<Head, std::vector<Head>, std::greater<Head>> heads;
    std::vector<uint8_t> is_considered;
    std::priority_queue<Head, std::vector<Head>, std::greater<Head>> frees;  // detaches, by key
    std::vector<int32_t> accounts;  // streams whose waits may have another cause once the instant is settled
    bool resets_rates = false;

    void consider(int32_t head, Key key) {
        if (!is_considered[head]) heads.emplace(key, head);
        is_considered[head] = 1;
    }

    int32_t take_head() {
        const int32_t head = heads.top().second;
        heads.pop();
        is_considered[head] = 0;
        return head;
    }

    void look_at(int32_t stream) { accounts.push_back(stream); }

    void wake(std::vector<int32_t> &watchers) {
        accounts.insert(accounts.end(), watchers.begin(), watchers.end());
        watchers.clear();
    }
};

}  // namespace replay
