// Places of tensors in tiers: their room, what is valid, and which moves (copies and detaches) have ended.
#pragma once

#include "world.hpp"

namespace replay {

inline int64_t World::moves_due(const Rank &rank, const Moves &moves, int32_t lap) const {
    return moves.goal + int64_t{lap} * actions(rank).moves_per_lap[moves.tensor];
}

// Return whether the first action of a head gets its room now; if not, put the head in line.
inline bool World::admit(int32_t index, int32_t head, Key turn, int64_t size) {
    Tier &tier = tiers[index];
    if ((!tier.line.empty() && turn > tier.line.begin()->first) || size > tier.capacity - tier.used) {
        tier.line.emplace(turn, head);
        return false;
    }
    tier.used += size;
    if (!tier.line.empty() && turn == tier.line.begin()->first) {
        tier.line.erase(tier.line.begin());
        try_line(tier);
    }
    return true;
}

inline void World::release(int32_t index, int64_t size) {
    tiers[index].used -= size;
    try_line(tiers[index]);
}

inline void World::try_line(Tier &tier) {
    if (!tier.line.empty()) agenda_.consider(tier.line.begin()->second, tier.line.begin()->first & ~COPIES);
}

// Mark a place as held, unless it is; its room was granted before.
inline void World::hold(int32_t number, int32_t tier, int32_t tensor) {
    Rank &rank = ranks_[number];
    uint8_t &held = rank.held[place(rank, tier, tensor)];
    const int64_t size = program(rank).size_bytes[tensor];
    if (!held && size) residencies.add(clock_.now, rank.number, tier, tensor, size);
    held = 1;
}

inline void World::free_place(int32_t number, int32_t tensor, int32_t tier) {
    Rank &rank = ranks_[number];
    const size_t at = place(rank, tier, tensor);
    if (rank.held[at]) {
        rank.held[at] = rank.valid[at] = 0;
        if (const int64_t size = program(rank).size_bytes[tensor]) {
            residencies.add(clock_.now, rank.number, tier, tensor, -size);
            release(rank.tiers[tier], size);
        }
    }
    end_move(rank, tensor);
}

inline void World::end_move(Rank &rank, int32_t tensor) {
    const int32_t ended = ++rank.moves_ended[tensor];
    int32_t &first = rank.first_waiter[tensor];
    while (first != NONE && move_waiters_[first].moves <= ended) {
        const int32_t waiter = first;
        first = move_waiters_[waiter].next;
        move_waiters_.give(waiter);
        call(Call(move_waiters_[waiter].call));
    }
}

// Return the first transfer of a tensor that has not ended, among those issued before an action.
inline int32_t World::first_transfer(const Rank &rank, int32_t tensor, Key before) {
    const int32_t first = rank.first_transfer[tensor];
    return first != NONE && transfers_[first].key < before ? first : NONE;
}

inline Key World::last_transfer(const Rank &rank, int32_t tensor, Key before) {
    Key last = NO_COPY;
    for (int32_t i = rank.first_transfer[tensor]; i != NONE && transfers_[i].key < before; i = transfers_[i].next)
        last = transfers_[i].key;
    return last;
}

// Call back once so many moves of the tensor have ended; if they have already, at the end of the next.
inline void World::wait_for_moves(Rank &rank, int32_t tensor, int64_t moves, Key key, Call call) {
    moves = std::max<int64_t>(moves, rank.moves_ended[tensor] + 1);
    const int32_t added = move_waiters_.take({moves, key, call, NONE});
    int32_t *at = &rank.first_waiter[tensor];
    while (*at != NONE && std::tie(move_waiters_[*at].moves, move_waiters_[*at].key) <= std::tie(moves, key))
        at = &move_waiters_[*at].next;
    move_waiters_[added].next = *at;
    *at = added;
}

}  // namespace replay
