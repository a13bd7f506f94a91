// What all parts of the replay use: numbers, tables of rows, lists of lists, and pools.
#pragma once

#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
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
constexpr Key COPIES = Key{1} << 62;             // added to a copy's turn in a line for room: computes come first
constexpr Key NO_COPY = Key{1} << 62;            // stands for the key of no copy, above all keys
constexpr int64_t ENDLESS = INT64_MAX;           // a bandwidth or a capacity without a limit
constexpr int64_t FULL_RATE = int64_t{1} << 32;  // the whole of a bandwidth, in fixed point
constexpr Time LONGEST = Time{1} << 61;          // no run may take longer, so that no sum of two times is too large
constexpr int64_t NS_PER_S = 1'000'000'000;
constexpr int32_t NEVER = -(1 << 30);  // the count of what does not exist: too low to be waited for in any lap
constexpr int32_t NONE = -1;

enum Kind : int8_t { COMPUTE, COPY, DETACH, SYNC };
enum Cause : int32_t { CAPACITY, TRANSFER, HOST, COMPACTION, PEER, ORDER, COLLECTIVE };

struct NotCovered {};  // thrown at what is left to the other engine: what is refused, or too large for the numbers here
struct Raised {};      // thrown where an error of Python is set

inline int64_t finite(int64_t bandwidth) { return bandwidth == ENDLESS ? FULL_RATE : bandwidth; }
inline Wide ceil_div(Wide a, Wide b) { return (a + b - 1) / b; }

// The time of some bytes at the full rate, in 2^-32 ns, rounded up.
inline Wide work_of(int64_t size_bytes, int64_t bandwidth) {
    return bandwidth == ENDLESS ? Wide{0} : ceil_div(Wide{size_bytes} * NS_PER_S * FULL_RATE, Wide{bandwidth});
}

template <typename T>
int32_t size_of(const T &things) { return static_cast<int32_t>(things.size()); }

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
    Span<T> operator[](size_t i) const { return {items.data() + (i ? ends[i - 1] : 0), items.data() + ends[i]}; }
    // What was written since the last list was closed.
    Span<T> open() const { return {items.data() + (ends.empty() ? 0 : ends.back()), items.data() + items.size()}; }
};

// Things that come and go, by number.
template <typename T>
struct Pool {
    std::vector<T> items;
    std::vector<int32_t> spare;

    T &operator[](int32_t i) { return items[i]; }
    const T &operator[](int32_t i) const { return items[i]; }
    void give(int32_t i) { spare.push_back(i); }

    int32_t take(const T &item) {
        if (spare.empty()) {
            items.push_back(item);
            return size_of(items) - 1;
        }
        const int32_t i = spare.back();
        spare.pop_back();
        items[i] = item;
        return i;
    }
};

// Rows of a table of the trace, in a bytearray of Python's: it grows without a copy where the system can remap memory.
template <int COLUMNS>
class Rows {
public:
    Rows() = default;
    Rows(const Rows &) = delete;
    ~Rows() { Py_XDECREF(bytes_); }

    template <typename... Values>
    void add(Values... values) {
        static_assert(sizeof...(values) == COLUMNS, "a value for each column");
        if (used_ == room_) resize(room_ ? 2 * room_ : 64);
        const int64_t row[] = {static_cast<int64_t>(values)...};
        std::memcpy(first_ + used_++ * sizeof row, row, sizeof row);
    }

    PyObject *take() {
        resize(used_);
        return std::exchange(bytes_, nullptr);
    }

private:
    PyObject *bytes_ = nullptr;
    char *first_ = nullptr;
    size_t used_ = 0, room_ = 0;

    void resize(size_t rows) {
        const Py_ssize_t size = static_cast<Py_ssize_t>(rows * COLUMNS * sizeof(int64_t));
        if (bytes_ == nullptr) bytes_ = PyByteArray_FromStringAndSize(nullptr, 0);
        if (bytes_ == nullptr || PyByteArray_Resize(bytes_, size) < 0) throw Raised{};
        first_ = PyByteArray_AsString(bytes_);
        room_ = rows;
    }
};

}  // namespace replay
