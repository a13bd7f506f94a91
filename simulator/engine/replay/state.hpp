// The state of a run: ranks with their streams, links and hosts, what they share, and counts that things wait for.
#pragma once

#include <map>

#include "dependencies.hpp"
#include "network.hpp"

namespace replay {

// How many actions of a queue have started, or ended; and what waits for more.
struct Count {
    int64_t reached = 0, per_lap = 0;
    Schedule waiters{};
};

struct Queued { Key key; Time issued; int32_t action, lap; };

struct Transfer : Queued {
    int32_t link, tensor;
    int32_t next = NONE;  // the next transfer of the tensor that has not ended
};

struct Detach : Queued { int32_t rank; };

// Waits for moves of a tensor; those of one tensor are in the order of moves and keys.
struct MoveWaiter { int64_t moves; Key key; Call call; int32_t next; };

struct Tier {
    int64_t capacity, used = 0;
    std::map<Key, int32_t> line{};  // heads that wait for room, by turn
};

// A tensor that a compute lacks: that is to be read and is not valid, or has too few moves ended.
struct Lacked {
    Key copy;  // the last one before it that has not ended
    int32_t tensor;
    int64_t moves;
    bool is_read;
    bool operator<(const Lacked &other) const { return std::tie(copy, tensor) > std::tie(other.copy, other.tensor); }
};

// The end of a walk along what a stream waits for: columns of the table of waits.
struct Reason {
    int32_t cause = NONE, tensor = NONE, on = NONE, blocker = NONE;
    bool operator==(const Reason &other) const {
        return std::tie(cause, tensor, on, blocker) == std::tie(other.cause, other.tensor, other.on, other.blocker);
    }
};

struct Part { Time start, end; Reason reason; };

struct Stream {
    int32_t rank, index, started, ended;  // the last two are counts
    std::deque<Queued> queue{};
    Queued running{};
    bool is_running = false, knows_lacked = false;
    Time start = 0;
    std::vector<Lacked> lacked{};  // what the first compute lacked when that was first asked, the first copy last
    int32_t meeting = NONE;        // where the running op has arrived
    int64_t flows_left = 0;        // of the running op, if kernels share the device; it does not end before:
    Time until = 0;
    // its current wait, in parts with one cause each
    bool waits = false;
    Time since = 0;
    Reason reason{};
    std::vector<Part> parts{};
    std::vector<int32_t> watchers{};
};

// Copies of one rank that start in issue order, on channels that several links may share.
struct Queue {
    int32_t started;  // a count
    std::deque<int32_t> waiting{};
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>> free{};
    std::vector<int32_t> running{}, watchers{};  // channels; streams
};

struct Channel { int32_t link, index, transfer = NONE; Time start = 0; };

struct Link {
    int32_t rank, index, queue, first_channel, source, target;
    int32_t path;  // of its flows, or none if nothing else can slow it down
};

struct Phase { int32_t fabric; int64_t hops, port_bytes; };
struct Fabric { Time latency; int64_t cap, unit; };
using Stages = std::vector<std::vector<Phase>>;

// Ranks that run collectives together, one at a time.
struct Meeting {
    struct Arrival { int32_t stream; Time at; };

    std::vector<int32_t> members;       // in order
    int32_t sender;                     // of a message: only it has a path
    std::vector<int32_t> sender_paths;  // by fabric
    Span<int32_t> stages_of;            // by collective, the position of its stages
    const Stages *stages = nullptr;
    size_t stage = 0, awaited = 0;        // the first member that has not arrived
    std::vector<uint8_t> has_arrived{};   // by member
    std::vector<Arrival> arrivals{};
    std::vector<Part> parts{};            // who was awaited when
    std::vector<int32_t> watchers{};
    int64_t flowing = 0;
    Time since = 0;

    bool has_begun() const { return awaited == members.size(); }
};

// A tensor of a rank: how many of its moves have ended, and who waits for more; its transfers that have not ended.
struct Tensor {
    int32_t moves_ended = 0, first_waiter = NONE, first_transfer = NONE, last_transfer = NONE;
};

struct Rank {
    int32_t number;
    const Program *program;
    const Actions *actions;
    int32_t first_stream, first_link, first_queue, first_count;
    std::vector<int32_t> tiers, meetings;  // its instances; by call
    std::vector<int32_t> ports, kernels;   // paths by fabric; by unit, the memory last
    std::vector<uint8_t> held, valid;      // places by tier and tensor
    std::vector<Tensor> tensors;
    // its host
    Time now = 0;
    Key next_key = 0;
    size_t position = 0;
    int32_t lap = 0, pending = NONE, awaited = NONE, asked = 0;
    int64_t credit = 0;
    bool is_finished = false;
    std::vector<int32_t> watchers{};

    size_t place(int32_t tier, int32_t tensor) const { return static_cast<size_t>(tier) * program->tensors + tensor; }
    const Action &action(const Queued &queued) const { return actions->actions[queued.action]; }
    int64_t moves_due(const Moves &moves, int32_t lap) const {
        return moves.goal + int64_t{lap} * actions->moves_per_lap[moves.tensor];
    }
};

// What all parts of a run stand on. Each part is a class that knows those before it; what is to happen later, or in a
// part behind it, is a call.
class State {
public:
    Clock clock;
    Agenda agenda;
    Network network{clock, agenda};
    Rows<9> spans;
    Rows<10> waits;
    Rows<5> residencies;
    std::vector<Tier> tiers;
    std::vector<Fabric> fabrics;
    std::vector<Meeting> meetings;
    std::vector<Stages> stage_lists;
    int64_t queue_depth = 0, launch_ns = 0;
    int64_t computes_ended = 0;

protected:
    std::vector<Rank> ranks_;
    std::vector<Stream> streams_;
    std::vector<Link> links_;
    std::vector<Queue> queues_;
    std::vector<Channel> channels_;
    std::vector<Count> counts_;
    Pool<Transfer> transfers_;
    Pool<Detach> detaches_;
    Pool<MoveWaiter> move_waiters_;

    ~State() = default;
    virtual void call(Call call) = 0;

    int32_t head_of(int32_t link) const { return size_of(streams_) + link; }

    // Return the first of these waits whose count is too low, or none.
    const Wait *unmet(Span<Wait> waits, const Rank &rank, int32_t lap) const {
        for (const Wait &wait : waits) {
            const Count &count = counts_[rank.first_count + wait.count];
            if (count.reached < wait.goal + lap * count.per_lap) return &wait;
        }
        return nullptr;
    }

    // Return whether some count is too low; if so, call back once the first of those is high enough.
    bool must_wait(Span<Wait> waits, const Rank &rank, int32_t lap, Call call) {
        const Wait *wait = unmet(waits, rank, lap);
        if (wait == nullptr) return false;
        Count &count = counts_[rank.first_count + wait->count];
        count.waiters.push({wait->goal + lap * count.per_lap, clock.put++, call});
        return true;
    }

    void reach(int32_t index) {
        Count &count = counts_[index];
        count.reached++;
        while (!count.waiters.empty() && count.waiters.top().when == count.reached) {
            const Call due = count.waiters.top().call;
            count.waiters.pop();
            call(due);
        }
    }
};

}  // namespace replay
