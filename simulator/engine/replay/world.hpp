// The state of a run: ranks with their places, streams, links and hosts, and what they share.
#pragma once

#include <functional>
#include <map>

#include "dependencies.hpp"
#include "network.hpp"

namespace replay {

// Things that come and go, by number.
template <typename T>
struct Pool {
    std::vector<T> items;
    std::vector<int32_t> spare;

    T &operator[](int32_t i) { return items[i]; }

    int32_t take(const T &item) {
        if (spare.empty()) {
            items.push_back(item);
            return static_cast<int32_t>(items.size()) - 1;
        }
        const int32_t index = spare.back();
        spare.pop_back();
        items[index] = item;
        return index;
    }

    void give(int32_t index) { spare.push_back(index); }
};

// How many actions of a queue have started, or ended; and what waits for more.
struct Count {
    int64_t reached = 0, per_lap = 0;
    Schedule waiters;
};

struct Queued {
    Key key;
    Time issued;
    int32_t action, lap;
};

struct Transfer : Queued {
    int32_t link, tensor;
    int32_t next = NONE;  // the next transfer of the tensor that has not ended
};

struct Detach : Queued {
    int32_t rank;
};

// Waits for moves of a tensor; those of one tensor in the order of moves and keys.
struct MoveWaiter {
    int64_t moves;
    Key key;
    Call call;
    int32_t next;
};

struct Tier {
    int64_t capacity, used = 0;
    std::map<Key, int32_t> line;  // heads that wait for room, by turn
};

struct Lacked {
    Key copy;  // the last one before, under way or to come
    int32_t tensor;
    int64_t moves;
    bool is_read;
    bool operator<(const Lacked &other) const {
        return std::tie(copy, tensor, moves, is_read) > std::tie(other.copy, other.tensor, other.moves, other.is_read);
    }
};

// The end of a walk along what a stream waits for: columns of the table of waits.
struct Reason {
    int32_t cause = NONE, tensor = NONE, on = NONE, blocker = NONE;
    bool operator!=(const Reason &other) const {
        return std::tie(cause, tensor, on, blocker) != std::tie(other.cause, other.tensor, other.on, other.blocker);
    }
};

struct Part {
    Time start, end;
    Reason reason;
};

// A stream's current wait, in parts with one cause each.
struct Account {
    bool is_open = false;
    Time since = 0;
    Reason reason;
    std::vector<Part> parts;
};

struct Stream {
    int32_t rank, index, started, ended;  // the last two are counts
    std::deque<Queued> queue;
    Queued running{};
    bool is_running = false;
    Time start = 0;
    bool knows_lacked = false;
    std::vector<Lacked> lacked;  // what the first compute lacked when that was first asked, the first copy last
    int32_t meeting = NONE;      // where the running op has arrived
    int64_t flows_left = 0;      // of the running op, if kernels share the device
    Time until = 0;              // it does not end before
    Account account;
    std::vector<int32_t> watchers;
};

// Copies of one rank that start in issue order, on channels that several links may share.
struct Queue {
    int32_t started;  // a count
    std::deque<int32_t> waiting;
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>> free;
    std::vector<int32_t> running;  // channels
    std::vector<int32_t> watchers;
};

struct Channel {
    int32_t link, index, transfer;
    Time start;
};

struct Link {
    int32_t rank, index, queue, first_channel;
    int32_t source, target;
    int32_t path;  // of its flows, or none if nothing else can slow it down
};

struct Phase {
    int32_t fabric;
    int64_t hops, port_bytes;
};

struct Fabric {
    Time latency;
    int64_t cap, unit;
};

// Ranks that run collectives together, one at a time.
struct Meeting {
    struct Arrival {
        int32_t stream;
        Time at;
    };

    std::vector<int32_t> members;       // in order
    int32_t sender = NONE;              // of a message: only it has a path
    std::vector<int32_t> sender_paths;  // by fabric
    const std::vector<std::vector<Phase>> *stages = nullptr;
    size_t stage = 0;
    std::vector<Arrival> arrivals;
    std::vector<uint8_t> has_arrived;  // by member
    std::vector<Part> parts;           // who was awaited when
    size_t awaited = 0;                // the first member that has not arrived
    int64_t flowing = 0;
    Time since = 0;
    std::vector<int32_t> watchers;

    bool has_begun() const { return awaited == members.size(); }
};

struct Rank {
    int32_t number, program, first_stream = 0, first_link = 0, first_queue = 0, first_count = 0;
    std::vector<int32_t> tiers;                     // its instances
    std::vector<int32_t> meetings;                  // by call
    std::vector<int32_t> port_paths, kernel_paths;  // by fabric; by unit, the memory last
    // its places, by tier and tensor, and its tensors
    std::vector<uint8_t> held, valid;
    std::vector<int32_t> moves_ended, first_transfer, first_waiter;
    // its host
    Time host_now = 0;
    Key next_key = 0;
    size_t position = 0;
    int32_t lap = 0, pending = NONE, awaited = NONE, asked = 0;
    int64_t credit = 0;
    bool is_finished = false;
    std::vector<int32_t> host_watchers;
};

struct Settings {
    int64_t queue_depth, launch_ns, memory_cap;
    Time stop_ns;
    bool keeps_waits;
};

class World {
public:
    World(std::vector<Program> programs, const Settings &settings);

    // What is shared is added first, then ranks in order.
    Network network{clock_, agenda_};
    std::vector<Tier> tiers;
    std::vector<Fabric> fabrics;
    std::vector<Meeting> meetings;
    std::vector<std::vector<std::vector<Phase>>> stage_lists;
    std::vector<int32_t> stages_of;  // by meeting and collective
    int32_t collectives = 0;
    int64_t computes_ended = 0;

    Rows<9> spans;
    Rows<10> waits;
    Rows<5> residencies;

    void add_rank(Rank rank, Span<int32_t> link_paths, Span<int32_t> stored_elsewhere);
    bool run(const std::function<bool()> &checkpoint);

private:
    std::vector<Program> programs_;
    std::vector<Actions> actions_;
    Settings settings_;
    Clock clock_;
    Agenda agenda_;
    std::vector<Rank> ranks_;
    std::vector<Stream> streams_;
    std::vector<Link> links_;
    std::vector<Queue> queues_;
    std::vector<Channel> channels_;
    std::vector<Count> counts_;
    Pool<Transfer> transfers_;
    Pool<Detach> detaches_;
    Pool<MoveWaiter> move_waiters_;

    const Program &program(const Rank &rank) const { return programs_[rank.program]; }
    const Actions &actions(const Rank &rank) const { return actions_[rank.program]; }
    size_t place(const Rank &rank, int32_t tier, int32_t tensor) const {
        return static_cast<size_t>(tier) * program(rank).tensors + tensor;
    }

    // instants (instants.hpp)
    void call(const Call &call);
    void settle();
    bool is_done() const;
    const Wait *unmet(Span<Wait> waits, const Rank &rank, int32_t lap) const;
    bool must_wait(Span<Wait> waits, const Rank &rank, int32_t lap, Call call);
    void reach(int32_t count);
    // places (places.hpp)
    int64_t moves_due(const Rank &rank, const Moves &moves, int32_t lap) const;
    bool admit(int32_t tier, int32_t head, Key turn, int64_t size);
    void release(int32_t tier, int64_t size);
    void try_line(Tier &tier);
    void hold(int32_t rank, int32_t tier, int32_t tensor);
    void free_place(int32_t rank, int32_t tensor, int32_t tier);
    void end_move(Rank &rank, int32_t tensor);
    int32_t first_transfer(const Rank &rank, int32_t tensor, Key before);
    Key last_transfer(const Rank &rank, int32_t tensor, Key before);
    void wait_for_moves(Rank &rank, int32_t tensor, int64_t moves, Key key, Call call);
    // streams (streams.hpp)
    void look_at_stream(int32_t stream);
    void try_compute(int32_t stream);
    bool may_start(int32_t stream);
    void finish_compute(int32_t stream);
    void end_after(int32_t stream, Time delay) { clock_.at(clock_.now + delay, {What::FINISH_COMPUTE, stream}); }
    Time duration(const Rank &rank, const Action &action) const;
    const Lacked *lacked(Stream &stream);
    int64_t room_of(const Stream &stream) const;
    // links (links.hpp)
    void look_at_link(int32_t link);
    bool lacks_source(const Transfer &transfer);
    void try_copy(int32_t link);
    void start_copy(int32_t link);
    void join_copy(int32_t channel);
    void end_lead(int32_t channel);
    void end_copy(int32_t channel);
    // hosts (hosts.hpp)
    void advance_host(int32_t rank);
    bool issue(int32_t rank, int32_t action);
    bool is_host_ahead(int32_t rank);
    bool has_credit(int32_t rank);
    bool is_past_sync(int32_t rank, int32_t action);
    int64_t unstarted(const Rank &rank) const;
    void wait_for_starts(int32_t rank, int64_t excess);
    void fill_queue(int32_t rank, int32_t asked);
    void try_detach(int32_t detach);
    // kernels (kernels.hpp)
    void begin_kernel(int32_t stream);
    void begin_kernel_flows(int32_t stream);
    void end_kernel_flow(int32_t stream);
    void arrive(int32_t meeting, int32_t stream, int32_t collective);
    void begin_stage(int32_t meeting);
    void begin_flows(int32_t meeting);
    void end_flow(int32_t meeting);
    // the ledger (ledger.hpp)
    void look_at_account(int32_t stream);
    void close_part(Account &account);
    void end_wait(Stream &stream, Key key, int32_t op);
    void add_wait(const Stream &stream, Key key, int32_t op, const Part &part);
    void watch(int32_t stream, std::vector<int32_t> &watchers);
    Reason find_reason(int32_t stream);
    Reason reason_of_running(int32_t stream, Stream &other);
    Reason reason_of_host(int32_t stream);
    Reason reason_of_tensor(int32_t stream, int32_t tensor, Key before);
};

}  // namespace replay
