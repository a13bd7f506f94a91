// Places of tensors in tiers: their room, what is valid, and which moves (copies and detaches) have ended.
#pragma once

#include "state.hpp"

namespace replay {

class Places : public State {
protected:
    // Return whether the first action of a head gets its room now; if not, put the head in line.
    bool admit(int32_t index, int32_t head, Key turn, int64_t size) {
        Tier &tier = tiers[index];
        const bool is_behind = !tier.line.empty() && turn > tier.line.begin()->first;
        if (is_behind || size > tier.capacity - tier.used) {
            tier.line.emplace(turn, head);
            return false;
        }
        tier.used += size;
        if (!tier.line.empty() && turn == tier.line.begin()->first) {
            tier.line.erase(turn);
            try_line(tier);
        }
        return true;
    }

    void release(int32_t index, int64_t size) {
        tiers[index].used -= size;
        try_line(tiers[index]);
    }

    void try_line(Tier &tier) {
        if (!tier.line.empty()) agenda.consider(tier.line.begin()->second, tier.line.begin()->first & ~COPIES);
    }

    void record(const Rank &rank, int32_t tier, int32_t item, int64_t delta_bytes) {
        if (delta_bytes) residencies.add(clock.now, rank.number, tier, item, delta_bytes);
    }

    // Mark a place as held, unless it is; its room was granted before.
    void hold(Rank &rank, int32_t tier, int32_t tensor) {
        if (!std::exchange(rank.held[rank.place(tier, tensor)], 1))
            record(rank, tier, tensor, rank.program->size_bytes[tensor]);
    }

    void free_place(Rank &rank, int32_t tensor, int32_t tier) {
        const size_t at = rank.place(tier, tensor);
        if (rank.held[at]) {
            rank.held[at] = rank.valid[at] = 0;
            const int64_t size = rank.program->size_bytes[tensor];
            record(rank, tier, tensor, -size);
            if (size) release(rank.tiers[tier], size);
        }
        end_move(rank.tensors[tensor]);
    }

    void end_move(Tensor &tensor) {
        const int32_t ended = ++tensor.moves_ended;
        while (tensor.first_waiter != NONE && move_waiters_[tensor.first_waiter].moves <= ended) {
            const MoveWaiter waiter = move_waiters_[tensor.first_waiter];
            move_waiters_.give(std::exchange(tensor.first_waiter, waiter.next));
            call(waiter.call);
        }
    }

    // Call back once so many moves of the tensor have ended; if they have already, at the end of the next.
    void wait_for_moves(Tensor &tensor, int64_t moves, Key key, Call call) {
        moves = std::max<int64_t>(moves, tensor.moves_ended + 1);
        const int32_t added = move_waiters_.take({moves, key, call, NONE});
        int32_t *at = &tensor.first_waiter;
        while (*at != NONE && std::tie(move_waiters_[*at].moves, move_waiters_[*at].key) <= std::tie(moves, key))
            at = &move_waiters_[*at].next;
        move_waiters_[added].next = std::exchange(*at, added);
    }

    void add_transfer(Tensor &tensor, int32_t added) {
        (tensor.first_transfer == NONE ? tensor.first_transfer : transfers_[tensor.last_transfer].next) = added;
        tensor.last_transfer = added;
    }

    void drop_transfer(Tensor &tensor, int32_t dropped) {
        int32_t *at = &tensor.first_transfer, before = NONE;
        for (; *at != dropped; at = &transfers_[*at].next) before = *at;
        if (tensor.last_transfer == dropped) tensor.last_transfer = before;
        *at = transfers_[dropped].next;
        transfers_.give(dropped);
    }

    // Return the first transfer of a tensor that has not ended, among those issued before an action.
    int32_t first_transfer(const Tensor &tensor, Key before) const {
        const int32_t first = tensor.first_transfer;
        return first != NONE && transfers_[first].key < before ? first : NONE;
    }

    Key last_transfer(const Tensor &tensor, Key before) const {
        Key last = NO_COPY;
        for (int32_t i = tensor.first_transfer; i != NONE && transfers_[i].key < before; i = transfers_[i].next)
            last = transfers_[i].key;
        return last;
    }

    // Return the first tensor that the first compute of a stream lacks; none if there is none. The first is the one
    // whose copy was issued first. A tensor that is there stays until the compute runs, and is not checked again.
    const Lacked *lacked(Stream &stream) {
        const Rank &rank = ranks_[stream.rank];
        const uint8_t *valid = rank.valid.data() + rank.place(rank.program->compute_tier, 0);
        if (!std::exchange(stream.knows_lacked, true)) list_lacked(stream, rank, valid);
        const auto is_there = [&](const Lacked &lack) {
            return rank.tensors[lack.tensor].moves_ended >= lack.moves && (valid[lack.tensor] || !lack.is_read);
        };
        while (!stream.lacked.empty() && is_there(stream.lacked.back())) stream.lacked.pop_back();
        return stream.lacked.empty() ? nullptr : &stream.lacked.back();
    }

    // Return the room that the first compute of a stream takes: new places for what it writes, and its workspace [B].
    int64_t room_of(const Stream &stream) const {
        const Rank &rank = ranks_[stream.rank];
        const Queued &head = stream.queue.front();
        int64_t room = rank.program->workspace_bytes[rank.action(head).item];
        for (int32_t tensor : rank.actions->writes[head.action])
            if (!rank.held[rank.place(rank.program->compute_tier, tensor)]) room += rank.program->size_bytes[tensor];
        return room;
    }

private:
    void list_lacked(Stream &stream, const Rank &rank, const uint8_t *valid) {
        const Queued &head = stream.queue.front();
        const Span<int32_t> reads = rank.actions->reads[head.action];
        std::map<int32_t, int64_t> due;
        for (const Moves &moves : rank.actions->moves[head.action])
            if (const int64_t goal = rank.moves_due(moves, head.lap); rank.tensors[moves.tensor].moves_ended < goal)
                due[moves.tensor] = goal;
        for (int32_t tensor : reads)
            if (!valid[tensor]) due.emplace(tensor, NEVER);
        stream.lacked.clear();
        for (const auto &[tensor, moves] : due) {
            const bool is_read = std::find(reads.begin(), reads.end(), tensor) != reads.end();
            stream.lacked.push_back({last_transfer(rank.tensors[tensor], head.key), tensor, moves, is_read});
        }
        std::sort(stream.lacked.begin(), stream.lacked.end());
    }
};

}  // namespace replay
