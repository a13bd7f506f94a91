// What all parts of the replay use: units, tables of rows, and lists of lists.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#if defined(_MSC_VER) && !defined(__clang__)
#include <__msvc_int128.hpp>
#endif

namespace replay {

#if defined(_MSC_VER) && !defined(__clang__)
using Wide = std::_Signed128;
#else
__extension__ typedef __int128 Wide;  // service in 2^-32 ns, and exact shares of a bandwidth, exceed 64 bits
#endif
using Time = int64_t;  // [ns]
using Key = int64_t;   // rank * 2^40 + issue number, so that keys sort in (rank, issue) order

constexpr int RANK_SHIFT = 40;
constexpr Key ISSUE_MASK = (Key{1} << RANK_SHIFT) - 1;
constexpr Key COPIES = Key{1} << 62;     // added to a copy's turn in a line for room: computes come first
constexpr Key NO_COPY = Key{1} << 62;    // stands for the key of no copy, above all keys
constexpr int64_t ENDLESS = INT64_MAX;   // a bandwidth or a capacity without a limit
constexpr int64_t FULL_RATE = int64_t{1} << 32;  // the whole of a bandwidth, in fixed point
constexpr int64_t NS_PER_S = 1'000'000'000;
constexpr int32_t NEVER = -(1 << 30);    // the count of what does not exist: too low to be waited for in any lap
constexpr int32_t NONE = -1;

// Thrown at what is left to the other engine: what is refused, or too large for the arithmetic here.
struct NotCovered {};

enum Kind : int8_t { COMPUTE, COPY, DETACH, SYNC };
enum Cause : int32_t { CAPACITY, TRANSFER, HOST, COMPACTION, PEER, ORDER, COLLECTIVE };

inline int64_t finite(int64_t bandwidth) { return bandwidth == ENDLESS ? FULL_RATE : bandwidth; }

inline Wide ceil_div(Wide a, Wide b) { return (a + b - 1) / b; }

// The time of some bytes at the full rate, in 2^-32 ns, rounded up.
inline Wide work_of(int64_t size_bytes, int64_t bandwidth) {
    return bandwidth == ENDLESS ? Wide{0} : ceil_div(Wide{size_bytes} * NS_PER_S * FULL_RATE, Wide{bandwidth});
}

// Rows of a table of the trace, kept in blocks, so that none is copied as the table grows.
template <int COLUMNS>
class Rows {
public:
    template <typename... Values>
    void add(Values... values) {
        static_assert(sizeof...(values) == COLUMNS, "a value for each column");
        if (in_block_ == BLOCK_ROWS) {
            blocks_.emplace_back(new int64_t[BLOCK_ROWS * COLUMNS]);
            in_block_ = 0;
        }
        const int64_t row[] = {static_cast<int64_t>(values)...};
        std::memcpy(blocks_.back().get() + in_block_ * COLUMNS, row, sizeof row);
        in_block_++;
    }

    size_t bytes() const {
        return blocks_.empty() ? 0 : ((blocks_.size() - 1) * BLOCK_ROWS + in_block_) * COLUMNS * sizeof(int64_t);
    }

    // Move all rows to one place; each block is freed once it is there.
    void move_to(char *target) {
        for (auto &block : blocks_) {
            const bool is_last = &block == &blocks_.back();
            const size_t size = (is_last ? in_block_ : BLOCK_ROWS) * COLUMNS * sizeof(int64_t);
            std::memcpy(target, block.get(), size);
            target += size;
            block.reset();
        }
        blocks_.clear();
        in_block_ = BLOCK_ROWS;
    }

private:
    static constexpr size_t BLOCK_ROWS = 4096;
    std::vector<std::unique_ptr<int64_t[]>> blocks_;
    size_t in_block_ = BLOCK_ROWS;
};

template <typename T>
struct Span {
    const T *first = nullptr, *last = nullptr;
    const T *begin() const { return first; }
    const T *end() const { return last; }
    bool empty() const { return first == last; }
    size_t size() const { return last - first; }
    const T &operator[](size_t i) const { return first[i]; }
};

// One list for each of many things, written one after another.
template <typename T>
struct Lists {
    std::vector<uint32_t> ends;
    std::vector<T> items;

    void close() { ends.push_back(static_cast<uint32_t>(items.size())); }

    Span<T> operator[](size_t i) const {
        return {items.data() + (i ? ends[i - 1] : 0), items.data() + ends[i]};
    }

    // What was written since the last list was closed.
    Span<T> open() const { return {items.data() + (ends.empty() ? 0 : ends.back()), items.data() + items.size()}; }

    void clear() {
        ends.clear();
        items.clear();
    }
};

}  // namespace replay
