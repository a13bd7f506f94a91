// What a rank runs, in columns of numbers from Python.
#pragma once

#include <deque>

#include "basics.hpp"

namespace replay {

// The columns of a dict, which holds numbers and arrays of numbers; its buffers are held as long as this is. A column
// that is not there is empty.
class Columns {
public:
    explicit Columns(PyObject *dict) : dict_(dict) {}
    Columns(const Columns &) = delete;
    ~Columns() {
        for (Py_buffer &buffer : buffers_) PyBuffer_Release(&buffer);
    }

    template <typename T = int64_t>
    T number(const char *name) {
        PyObject *value = PyDict_GetItemString(dict_, name);
        if (value == nullptr) PyErr_Format(PyExc_KeyError, "no number %s", name);
        const int64_t number = value == nullptr ? 0 : PyLong_AsLongLong(value);
        if (PyErr_Occurred()) throw Raised{};
        return static_cast<T>(number);
    }

    template <typename T>
    Span<T> column(const char *name) {
        Py_buffer buffer;
        PyObject *value = PyDict_GetItemString(dict_, name);
        if (value == nullptr) return {};
        if (PyObject_GetBuffer(value, &buffer, PyBUF_C_CONTIGUOUS) < 0) throw Raised{};
        buffers_.push_back(buffer);
        if (buffer.itemsize != sizeof(T) && buffer.len) {
            PyErr_Format(PyExc_TypeError, "column %s: numbers of %zd bytes, not %zu", name, buffer.itemsize, sizeof(T));
            throw Raised{};
        }
        const T *first = static_cast<const T *>(buffer.buf);
        return {first, first + buffer.len / static_cast<Py_ssize_t>(sizeof(T))};
    }

private:
    PyObject *dict_;
    std::deque<Py_buffer> buffers_;
};

#define REPLAY_NUMBERS(NUMBER)                                                                                  \
    NUMBER(int32_t, ops) NUMBER(int32_t, tensors) NUMBER(int32_t, tiers) NUMBER(int32_t, compute_tier)          \
    NUMBER(int32_t, streams) NUMBER(int32_t, links) NUMBER(int32_t, queues) NUMBER(int32_t, size_classes)       \
    NUMBER(int32_t, repeats) NUMBER(int32_t, steps) NUMBER(Time, starts_ns)                                     \
    NUMBER(bool, is_decided) /* by a runtime: nothing has checked yet that each action can act */               \
    NUMBER(bool, copies_wait_for_ends)

#define REPLAY_COLUMNS(COLUMN)                                                                                  \
    /* by op: where its reads, its writes begin; by tensor */                                                   \
    COLUMN(int64_t, reads_at) COLUMN(int32_t, reads) COLUMN(int64_t, writes_at) COLUMN(int32_t, writes)         \
    COLUMN(int64_t, workspace_bytes) COLUMN(int64_t, duration_ns) COLUMN(uint8_t, is_collective)                \
    COLUMN(int64_t, size_bytes) COLUMN(int32_t, home) COLUMN(uint8_t, is_written) COLUMN(uint8_t, is_output)    \
    /* by action; a fixed plan has one price for all */                                                         \
    COLUMN(int8_t, kind) COLUMN(int32_t, a) COLUMN(int32_t, b) COLUMN(int32_t, c) COLUMN(int64_t, price_ns)     \
    /* by link; by source and target tier; by tensor, the number of its size; by link and that */               \
    COLUMN(int32_t, queue_of) COLUMN(int32_t, channels) COLUMN(int32_t, source) COLUMN(int32_t, target)         \
    COLUMN(int32_t, route) COLUMN(int32_t, size_class) COLUMN(int64_t, lead_ns) COLUMN(int64_t, cap)            \
    /* by read, 0 if certain, 1 if only other ops choose it, 2 if its op does; by op, its draws; by draw */     \
    COLUMN(uint8_t, read_role) COLUMN(int32_t, draws_of) COLUMN(int64_t, chosen_at) COLUMN(int32_t, chosen)     \
    COLUMN(int64_t, drawn_ns) COLUMN(int64_t, drawn_traffic)                                                    \
    /* by op: its unit, the share of that it reaches, and works (upper and lower half); call and collective */  \
    COLUMN(int64_t, unit) COLUMN(int64_t, unit_share) COLUMN(int64_t, unit_work) COLUMN(int64_t, traffic)       \
    COLUMN(int64_t, traffic_share) COLUMN(int32_t, call_of) COLUMN(int32_t, collective_of)

struct Program {
#define NUMBER(type, name) type name;
#define COLUMN(type, name) Span<type> name;
    REPLAY_NUMBERS(NUMBER)
    REPLAY_COLUMNS(COLUMN)
#undef NUMBER
#undef COLUMN

    explicit Program(Columns &from) {
#define NUMBER(type, name) name = from.number<type>(#name);
#define COLUMN(type, name) name = from.column<type>(#name);
        REPLAY_NUMBERS(NUMBER)
        REPLAY_COLUMNS(COLUMN)
#undef NUMBER
#undef COLUMN
    }

    Span<int32_t> reads_of(int32_t op) const { return part(reads, reads_at, op); }
    Span<int32_t> writes_of(int32_t op) const { return part(writes, writes_at, op); }
    static Span<int32_t> part(Span<int32_t> all, Span<int64_t> starts, int32_t i) {
        return {all.first + starts[i], all.first + starts[i + 1]};
    }
    bool has_draws() const { return !draws_of.empty(); }
    bool has_laps() const { return repeats > 1 && !has_draws(); }  // counted once for all
};

}  // namespace replay
