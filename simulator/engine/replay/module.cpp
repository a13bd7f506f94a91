// The module `_replay`: columns of numbers in, rows of a trace out.
#include <Python.h>

#include <string>

#include "hosts.hpp"
#include "instants.hpp"
#include "kernels.hpp"
#include "ledger.hpp"
#include "links.hpp"
#include "places.hpp"
#include "streams.hpp"

namespace replay {
namespace {

// An error of Python is set.
struct Raised {};

// The columns of a dict, which holds arrays of numbers, and numbers; its buffers are held as long as this is.
class Columns {
public:
    explicit Columns(PyObject *dict) : dict_(dict) {}
    Columns(Columns &&) = default;
    ~Columns() {
        for (Py_buffer &buffer : buffers_) PyBuffer_Release(&buffer);
    }

    int64_t number(const char *name) {
        const int64_t value = PyLong_AsLongLong(find(name));
        if (PyErr_Occurred()) throw Raised{};
        return value;
    }

    template <typename T>
    void read(const char *name, Span<T> &column) {
        buffers_.emplace_back();
        if (PyObject_GetBuffer(find(name), &buffers_.back(), PyBUF_C_CONTIGUOUS) < 0) {
            buffers_.pop_back();
            throw Raised{};
        }
        const Py_buffer &buffer = buffers_.back();
        if (buffer.itemsize != sizeof(T) && buffer.len) {
            PyErr_Format(PyExc_TypeError, "column %s has numbers of %zd bytes, not %zu", name, buffer.itemsize, sizeof(T));
            throw Raised{};
        }
        column.first = static_cast<const T *>(buffer.buf);
        column.last = column.first + buffer.len / static_cast<Py_ssize_t>(sizeof(T));
    }

    template <typename T>
    Span<T> get(const char *name) {
        Span<T> column;
        read(name, column);
        return column;
    }

private:
    PyObject *dict_;
    std::deque<Py_buffer> buffers_;

    PyObject *find(const char *name) {
        PyObject *value = PyDict_GetItemString(dict_, name);
        if (value == nullptr) {
            PyErr_Format(PyExc_KeyError, "no column %s", name);
            throw Raised{};
        }
        return value;
    }
};

Program program_of(Columns &from) {
    Program p;
    const auto number = [&from](const char *name) { return static_cast<int32_t>(from.number(name)); };
    p.ops = number("ops"), p.tensors = number("tensors"), p.tiers = number("tiers"), p.streams = number("streams");
    p.links = number("links"), p.queues = number("queues"), p.compute_tier = number("compute_tier");
    p.repeats = number("repeats"), p.steps = number("steps"), p.starts_ns = from.number("starts_ns");
    p.is_decided = number("is_decided"), p.issues_in_laps = number("issues_in_laps"), p.copies_wait_for_ends = number("copies_wait_for_ends");
    from.read("reads_at", p.reads_at), from.read("reads", p.reads);
    from.read("writes_at", p.writes_at), from.read("writes", p.writes);
    from.read("workspace_bytes", p.workspace_bytes), from.read("duration_ns", p.duration_ns);
    from.read("size_bytes", p.size_bytes), from.read("home", p.home);
    from.read("is_written", p.is_written), from.read("is_output", p.is_output);
    from.read("is_collective", p.is_collective);
    from.read("kind", p.kind), from.read("a", p.a), from.read("b", p.b), from.read("c", p.c);
    from.read("price_ns", p.price_ns);
    from.read("queue_of", p.queue_of), from.read("channels", p.channels);
    from.read("source", p.source), from.read("target", p.target), from.read("route", p.route);
    from.read("timing_of", p.timing_of), from.read("lead_ns", p.lead_ns), from.read("cap", p.cap);
    from.read("read_role", p.read_role), from.read("draws_of", p.draws_of);
    from.read("chosen_at", p.chosen_at), from.read("chosen", p.chosen);
    from.read("drawn_ns", p.drawn_ns), from.read("drawn_traffic", p.drawn_traffic);
    from.read("unit", p.unit), from.read("unit_share", p.unit_share);
    from.read("unit_work", p.unit_work), from.read("traffic", p.traffic);
    from.read("call_of", p.call_of), from.read("collective_of", p.collective_of);
    return p;
}

// Rows of a table with so many columns as spans of numbers.
template <typename T>
Span<T> row(Span<T> table, size_t number, size_t columns) {
    return {table.first + number * columns, table.first + (number + 1) * columns};
}

void add_network(World &world, Columns &from) {
    for (Span<int64_t> all = from.get<int64_t>("resources"); !all.empty(); all.first += 3) {
        world.network.resources.emplace_back();
        Resource &resource = world.network.resources.back();
        resource.bandwidth = all[0];
        resource.bus = static_cast<int32_t>(all[1]), resource.instance = static_cast<int32_t>(all[2]);
    }
    for (Span<int64_t> all = from.get<int64_t>("paths"); !all.empty(); all.first += 2)
        world.network.paths.push_back({all[0], all[1] != 0, {}, {}});
    for (Span<int64_t> all = from.get<int64_t>("uses"); !all.empty(); all.first += 3)
        world.network.paths[all[0]].uses.push_back({static_cast<int32_t>(all[1]), all[2]});
}

void add_meetings(World &world, Columns &from) {
    for (Span<int64_t> all = from.get<int64_t>("fabrics"); !all.empty(); all.first += 3)
        world.fabrics.push_back({all[0], all[1], all[2]});
    const size_t fabrics = world.fabrics.size();
    const Span<int32_t> members_at = from.get<int32_t>("members_at"), members = from.get<int32_t>("members");
    const Span<int32_t> sender = from.get<int32_t>("sender"), paths = from.get<int32_t>("sender_paths");
    for (size_t i = 0; i < sender.size(); i++) {
        world.meetings.emplace_back();
        Meeting &meeting = world.meetings.back();
        meeting.members.assign(members.first + members_at[i], members.first + members_at[i + 1]);
        meeting.sender = sender[i];
        const Span<int32_t> own = row(paths, i, fabrics);
        meeting.sender_paths.assign(own.begin(), own.end());
    }
    for (Span<int64_t> all = from.get<int64_t>("phases"); !all.empty(); all.first += 5) {
        auto &lists = world.stage_lists;
        if (lists.size() <= static_cast<size_t>(all[0])) lists.resize(all[0] + 1);
        auto &stages = lists[all[0]];
        if (all[1] == NONE) continue;  // among one member, nothing is sent
        if (stages.size() <= static_cast<size_t>(all[1])) stages.resize(all[1] + 1);
        stages[all[1]].push_back({static_cast<int32_t>(all[2]), all[3], all[4]});
    }
    const Span<int32_t> stages_of = from.get<int32_t>("stages_of");
    world.stages_of.assign(stages_of.begin(), stages_of.end());
    world.collectives = static_cast<int32_t>(from.number("collectives"));
}

void add_ranks(World &world, Columns &from) {
    const Span<int32_t> numbers = from.get<int32_t>("ranks"), programs = from.get<int32_t>("programs");
    const Span<int32_t> stored_at = from.get<int32_t>("stored_at"), stored = from.get<int32_t>("stored");
    const Span<int32_t> tiers = from.get<int32_t>("tiers"), links = from.get<int32_t>("link_paths");
    const Span<int32_t> meetings = from.get<int32_t>("meetings"), ports = from.get<int32_t>("port_paths");
    const Span<int32_t> kernels = from.get<int32_t>("kernel_paths");
    for (const int64_t capacity : from.get<int64_t>("capacities")) world.tiers.push_back({capacity});
    for (size_t i = 0; i < numbers.size(); i++) {
        const auto own = [&](Span<int32_t> table) { return row(table, i, table.size() / numbers.size()); };
        const auto copied = [&](Span<int32_t> table) { return std::vector<int32_t>(own(table).begin(), own(table).end()); };
        Rank rank;
        rank.number = numbers[i], rank.program = programs[i];
        rank.tiers = copied(tiers), rank.meetings = copied(meetings);
        rank.port_paths = copied(ports), rank.kernel_paths = copied(kernels);
        world.add_rank(rank, own(links), {stored.first + stored_at[i], stored.first + stored_at[i + 1]});
    }
}

template <int COLUMNS>
PyObject *bytes_of(Rows<COLUMNS> &rows) {
    PyObject *bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(rows.bytes()));
    if (bytes == nullptr) throw Raised{};
    rows.move_to(PyBytes_AsString(bytes));
    return bytes;
}

// Tell the caller how many computes have ended, if it wants to know; return whether to go on.
bool tell(PyObject *progress, int64_t ended) {
    if (PyErr_CheckSignals() < 0) return false;
    if (progress == Py_None) return true;
    PyObject *answer = PyObject_CallFunction(progress, "L", static_cast<long long>(ended));
    Py_XDECREF(answer);
    return answer != nullptr;
}

// Replay a machine with its programs; return the tables, or None if that is left to the other engine.
PyObject *run(PyObject *, PyObject *arguments) {
    PyObject *machine, *programs, *progress;
    if (!PyArg_ParseTuple(arguments, "O!O!O", &PyDict_Type, &machine, &PyList_Type, &programs, &progress)) return nullptr;
    try {
        Columns of_machine(machine);
        std::deque<Columns> of_programs;
        std::vector<Program> read;
        for (Py_ssize_t i = 0; i < PyList_Size(programs); i++) {
            of_programs.emplace_back(PyList_GetItem(programs, i));
            read.push_back(program_of(of_programs.back()));
        }
        const Settings settings{of_machine.number("queue_depth"), of_machine.number("launch_ns"),
                                of_machine.number("memory_cap"), of_machine.number("stop_ns"),
                                of_machine.number("keeps_waits") != 0};
        World world(std::move(read), settings);
        add_network(world, of_machine);
        add_meetings(world, of_machine);
        add_ranks(world, of_machine);
        const bool is_done = world.run([&] { return tell(progress, world.computes_ended); });
        if (PyErr_Occurred()) return nullptr;
        if (!is_done) Py_RETURN_NONE;
        return Py_BuildValue("(NNNN)", bytes_of(world.spans), bytes_of(world.waits), bytes_of(world.residencies),
                             bytes_of(world.network.rates));
    } catch (const NotCovered &) {
        Py_RETURN_NONE;
    } catch (const Raised &) {
        return nullptr;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "Replay a machine (dict of columns) with programs (a list of such)."},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_replay", nullptr, 0, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace replay

PyMODINIT_FUNC PyInit__replay() {
    PyObject *module = PyModule_Create(&replay::definition);
    if (module != nullptr && PyModule_AddStringConstant(module, "sources", HOSIM_SOURCES) < 0) Py_CLEAR(module);
    return module;
}
