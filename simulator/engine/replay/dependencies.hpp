// What each action of a program waits for, counted in issue order.
#pragma once

#include "program.hpp"

namespace replay {

struct Wait {
    int32_t count;  // of the rank: 2 s and 2 s + 1 for computes of stream s that have started, ended; then of queues
    int32_t goal;   // counted from the start of the lap
};

struct Moves {
    int32_t tensor, goal;  // so many of its copies and detaches must have ended
};

struct Action {
    int32_t item;   // op or tensor
    int32_t where;  // stream, link, or tier
    int32_t draw;   // of a compute with dynamic reads
    Kind kind;
    bool is_free;  // a compute with nothing to wait for, to take or to make valid
};

// The actions of one lap of a program, each with what it waits for.
struct Actions {
    std::vector<Action> actions;
    Lists<Wait> ends;   // computes that must have ended
    Lists<Wait> line;   // what must have started: the compute before a copy, and what is ahead in line for room
    Lists<Moves> moves;
    Lists<int32_t> reads, writes;  // of a compute; without what earlier ones make needless to check
    std::vector<int32_t> moves_per_lap, counts_per_lap;  // by tensor, and by count of the rank

    void close() { ends.close(), line.close(), moves.close(), reads.close(), writes.close(); }
};

// Counts actions in issue order. The rules are those of the page on semantics; counts follow from the order alone.
class Counter {
public:
    Counter(const Program &program, Actions &found)
        : p_(program), found_(found), streams_(program.streams), moves_(p_.tensors), fence_(p_.tensors, NEVER),
          is_sole_(p_.tensors), states_(p_.tiers, std::vector<uint8_t>(p_.tensors, ABSENT)),
          copies_(2 * p_.streams + p_.queues), brought_(p_.tensors, Wait{NONE, 0}), issues_(p_.ops) {
        for (Stream &stream : streams_) {
            stream.last_use.assign(p_.tensors, NEVER);
            stream.last_write.assign(p_.tensors, NEVER);
            stream.waited.assign(p_.streams, NEVER);
            stream.is_ready.assign(p_.tensors, 0);
        }
        for (int32_t tensor = 0; tensor < p_.tensors; tensor++)
            if (p_.home[tensor] >= 0) states_[p_.home[tensor]][tensor] = VALID;
        found_.moves_per_lap.assign(p_.tensors, 0);
        found_.counts_per_lap.assign(copies_.size(), 0);
        for (int32_t lap = 0; lap < (p_.has_laps() ? 1 : p_.repeats); lap++) count_all();
        if (p_.has_laps()) begin_next_lap(), count_all();
    }

private:
    enum State : uint8_t { ABSENT, VALID, STALE };

    struct Stream {
        int32_t computes = 0;
        std::vector<int32_t> last_use, last_write;  // by tensor: the last compute that uses it, that writes it
        std::vector<int32_t> waited;                // by other stream: the last of its ends that was waited for
        std::vector<uint8_t> is_ready;              // tensors that need no further wait
        std::vector<Wait> needed;                   // copies that computes need since the last compute with room
    };

    const Program &p_;
    Actions &found_;
    std::vector<Stream> streams_;
    std::vector<int32_t> moves_, fence_;
    std::vector<uint8_t> is_sole_;  // tensors without another valid copy
    std::vector<std::vector<uint8_t>> states_;
    std::vector<int32_t> copies_;   // by count: copies of a queue
    std::vector<Wait> brought_;     // tensors' last copies into the compute tier
    std::vector<int32_t> issues_;   // by op with dynamic reads
    int32_t last_stream_ = 0, room_stream_ = 0, room_count_ = NEVER;

    void count_all() {
        for (size_t i = 0; i < p_.kind.size(); i++) {
            const int32_t a = p_.a[i], b = p_.b[i], c = p_.c[i];
            switch (p_.kind[i]) {
                case COMPUTE: count_compute(a, b); break;
                case COPY: count_copy(a, b, c); break;
                case DETACH: count_detach(a, b); break;
                default: count_sync(a);
            }
            found_.close();
        }
    }

    // From lap to lap all counts grow by what one lap adds; those that refer to the lap before are not positive.
    void begin_next_lap() {
        found_.moves_per_lap = moves_;
        found_.counts_per_lap = copies_;
        for (int32_t s = 0; s < p_.streams; s++) {
            Stream &stream = streams_[s];
            found_.counts_per_lap[2 * s] = found_.counts_per_lap[2 * s + 1] = stream.computes;
            for (auto *last : {&stream.last_use, &stream.last_write})
                for (int32_t &count : *last) count -= stream.computes;
            for (Wait &copy : stream.needed) copy.goal -= copies_[copy.count];
            stream.waited.assign(p_.streams, NEVER);
            stream.is_ready.assign(p_.tensors, 0);
        }
        room_count_ -= streams_[room_stream_].computes;
        for (Wait &copy : brought_)
            if (copy.count != NONE) copy.goal -= copies_[copy.count];
        for (int32_t tensor = 0; tensor < p_.tensors; tensor++) fence_[tensor] -= moves_[tensor];
        for (Stream &stream : streams_) stream.computes = 0;
        std::fill(moves_.begin(), moves_.end(), 0);
        std::fill(copies_.begin(), copies_.end(), 0);
        std::fill(is_sole_.begin(), is_sole_.end(), 0);
        found_ = {{}, {}, {}, {}, {}, {}, found_.moves_per_lap, found_.counts_per_lap};
    }

    // Leave a plan of a runtime that breaks a rule to the other engine, which knows the sentence.
    void insist(bool is_right) const {
        if (!is_right && p_.is_decided) throw NotCovered{};
    }

    void add(Kind kind, int32_t item, int32_t where) { found_.actions.push_back({item, where, NONE, kind, false}); }

    void count_compute(int32_t op, int32_t s) {
        Stream &stream = streams_[s];
        add(COMPUTE, op, s);
        Action &action = found_.actions.back();
        last_stream_ = s;
        const int32_t count = ++stream.computes;
        if (p_.streams > 1) wait_for_other_streams(op, s);
        for (int32_t tensor : p_.reads_of(op)) stream.last_use[tensor] = count;
        for (int32_t tensor : p_.writes_of(op)) stream.last_use[tensor] = stream.last_write[tensor] = count;
        if (p_.has_draws() && p_.draws_of[op] != NONE) {
            if (issues_[op] == p_.steps) throw NotCovered{};
            action.draw = p_.draws_of[op] * p_.steps + issues_[op]++;
        }
        list_reads(op, action.draw, stream);
        for (int32_t tensor : p_.writes_of(op))
            if (!is_sole_[tensor]) found_.writes.items.push_back(tensor);
        for (int32_t tensor : found_.writes.open()) stream.is_ready[tensor] = is_sole_[tensor] = 1;
        const Span<int32_t> writes = found_.writes.open();
        action.is_free = found_.reads.open().empty() && writes.empty() && found_.ends.open().empty() &&
                         !p_.workspace_bytes[op] && action.draw == NONE;
        if (action.is_free) return;
        for (int32_t tensor : found_.reads.open()) insist(states_[p_.compute_tier][tensor] == VALID);
        for (int32_t tensor : found_.reads.open())
            if (fence_[tensor] > NEVER) found_.moves.items.push_back({tensor, fence_[tensor]});
        for (int32_t tensor : writes)
            if (moves_[tensor] || found_.moves_per_lap[tensor]) found_.moves.items.push_back({tensor, moves_[tensor]});
        stand_in_line(op, s, count);
        for (int32_t tensor : writes) {
            for (auto &states : states_)
                if (states[tensor] == VALID) states[tensor] = STALE;
            states_[p_.compute_tier][tensor] = VALID;
        }
    }

    // List what must be valid as the compute starts, and note the copies that bring what it names.
    void list_reads(int32_t op, int32_t draw, Stream &stream) {
        std::vector<int32_t> &listed = found_.reads.items;
        const auto role = [this](int64_t read) { return p_.read_role.empty() ? 0 : p_.read_role[read]; };
        for (int64_t read = p_.reads_at[op]; read < p_.reads_at[op + 1]; read++) {
            if (role(read)) continue;
            if (!stream.is_ready[p_.reads[read]]) listed.push_back(p_.reads[read]);
            note_copy(p_.reads[read], stream);
        }
        for (int32_t tensor : found_.reads.open()) stream.is_ready[tensor] = 1;
        const auto add_possible = [&](int32_t tensor) {
            listed.push_back(tensor);
            note_copy(tensor, stream);
        };
        if (draw != NONE)
            for (int64_t i = p_.chosen_at[draw]; i < p_.chosen_at[draw + 1]; i++) add_possible(p_.chosen[i]);
        for (int64_t read = p_.reads_at[op]; read < p_.reads_at[op + 1]; read++)
            if (role(read) == 1) add_possible(p_.reads[read]);
        for (int32_t tensor : p_.writes_of(op)) note_copy(tensor, stream);
    }

    // Room of other streams waits for the last copy of a tensor that a compute names.
    void note_copy(int32_t tensor, Stream &stream) {
        const Wait copy = brought_[tensor];
        if (copy.count == NONE || p_.streams == 1) return;
        for (Wait &needed : stream.needed)
            if (needed.count == copy.count) {
                needed.goal = std::max(needed.goal, copy.goal);
                return;
            }
        stream.needed.push_back(copy);
    }

    // Room is given in issue order: a compute that takes some begins a new line.
    void stand_in_line(int32_t op, int32_t s, int32_t count) {
        bool takes_room = p_.workspace_bytes[op] != 0;
        for (int32_t tensor : found_.writes.open())
            takes_room |= states_[p_.compute_tier][tensor] == ABSENT && p_.size_bytes[tensor] != 0;
        if (!takes_room) return;
        wait_in_line(s);
        room_stream_ = s, room_count_ = count;
        for (Stream &stream : streams_) stream.needed.clear();
    }

    void wait_in_line(int32_t s) {
        if (p_.streams == 1) return;
        for (int32_t other = 0; other < p_.streams; other++)
            if (other != s)
                for (const Wait &copy : streams_[other].needed) found_.line.items.push_back(copy);
        if (room_stream_ != s && room_count_ > NEVER) found_.line.items.push_back({2 * room_stream_, room_count_});
    }

    // Wait for the last ends of other streams that write what this op reads, or use what it writes.
    void wait_for_other_streams(int32_t op, int32_t s) {
        for (int32_t other = 0; other < p_.streams; other++) {
            if (other == s) continue;
            int32_t count = NEVER;
            for (int32_t tensor : p_.reads_of(op)) count = std::max(count, streams_[other].last_write[tensor]);
            for (int32_t tensor : p_.writes_of(op)) count = std::max(count, streams_[other].last_use[tensor]);
            if (count <= streams_[s].waited[other]) continue;
            streams_[s].waited[other] = count;
            found_.ends.items.push_back({2 * other + 1, count});
        }
    }

    void wait_for_last(std::vector<int32_t> Stream::*last, int32_t tensor) {
        for (int32_t s = 0; s < p_.streams; s++) {
            const int32_t count = (streams_[s].*last)[tensor];
            if (count > NEVER) found_.ends.items.push_back({2 * s + 1, count});
        }
    }

    void count_copy(int32_t tensor, int32_t source, int32_t target) {
        insist(states_[source][tensor] == VALID && states_[target][tensor] != VALID);
        if (states_[source][tensor] == VALID) states_[target][tensor] = VALID;
        const int32_t link = p_.route[source * p_.tiers + target], count = 2 * p_.streams + p_.queue_of[link];
        add(COPY, tensor, link);
        if (p_.is_written[tensor]) wait_for_last(&Stream::last_write, tensor);
        found_.moves.items.push_back({tensor, fence_[tensor]});
        moves_[tensor]++;
        is_sole_[tensor] = 0;
        const int32_t pace = 2 * last_stream_ + p_.copies_wait_for_ends;
        found_.line.items.push_back({pace, streams_[last_stream_].computes});
        copies_[count]++;
        if (target != p_.compute_tier) return;
        wait_in_line(last_stream_);
        brought_[tensor] = {count, copies_[count]};
    }

    void count_detach(int32_t tensor, int32_t tier) {
        insist(states_[tier][tensor] != ABSENT);
        add(DETACH, tensor, tier);
        bool is_last_copy = p_.is_output[tensor];
        for (int32_t t = 0; t < p_.tiers; t++) is_last_copy &= (states_[t][tensor] == VALID) == (t == tier);
        if (is_last_copy)
            for (int32_t s = 0; s < p_.streams; s++) found_.ends.items.push_back({2 * s + 1, streams_[s].computes});
        else
            wait_for_last(&Stream::last_use, tensor);
        found_.moves.items.push_back({tensor, moves_[tensor]});
        states_[tier][tensor] = ABSENT;
        moves_[tensor] = fence_[tensor] = moves_[tensor] + 1;
        is_sole_[tensor] = 0;
        for (Stream &stream : streams_) stream.is_ready[tensor] = 0;
    }

    void count_sync(int32_t tensor) {
        add(SYNC, tensor, NONE);
        wait_for_last(&Stream::last_use, tensor);
        found_.moves.items.push_back({tensor, moves_[tensor]});
    }
};

}  // namespace replay
