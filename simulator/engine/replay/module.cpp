// The module `_replay`: columns of numbers in, rows of a trace out.
#include "world.hpp"

namespace replay {
namespace {

// One row of a table that has so many.
Span<int32_t> row(Span<int32_t> table, size_t number, size_t rows) {
    const size_t columns = rows ? table.size() / rows : 0;
    return {table.first + number * columns, table.first + (number + 1) * columns};
}

std::vector<int32_t> copied(Span<int32_t> row) { return {row.begin(), row.end()}; }

void add_network(World &world, Columns &from) {
    const auto id = [](int64_t number) { return static_cast<int32_t>(number); };
    for (auto all = from.column<int64_t>("resources"); !all.empty(); all.first += 3)
        world.network.resources.push_back({all[0], id(all[1]), id(all[2])});
    for (auto all = from.column<int64_t>("paths"); !all.empty(); all.first += 2)
        world.network.paths.push_back({all[0], all[1] != 0});
    for (auto all = from.column<int64_t>("uses"); !all.empty(); all.first += 3)
        world.network.paths[all[0]].uses.push_back({id(all[1]), all[2]});
}

void add_meetings(World &world, Columns &from) {
    for (auto all = from.column<int64_t>("fabrics"); !all.empty(); all.first += 3)
        world.fabrics.push_back({all[0], all[1], all[2]});
    const auto members = from.column<int32_t>("members"), members_at = from.column<int32_t>("members_at");
    const auto senders = from.column<int32_t>("senders"), paths = from.column<int32_t>("sender_paths");
    const auto stages_of = from.column<int32_t>("stages_of");
    for (size_t i = 0; i < senders.size(); i++) {
        const auto own = [&](Span<int32_t> table) { return row(table, i, senders.size()); };
        const Span<int32_t> meeting{members.first + members_at[i], members.first + members_at[i + 1]};
        world.meetings.push_back({copied(meeting), senders[i], copied(own(paths)), own(stages_of)});
    }
    for (int32_t list : stages_of)  // some lists have no stages
        world.stage_lists.resize(std::max(world.stage_lists.size(), static_cast<size_t>(list + 1)));
    for (auto all = from.column<int64_t>("phases"); !all.empty(); all.first += 5) {
        auto &stages = world.stage_lists[all[0]];
        if (stages.size() == static_cast<size_t>(all[1])) stages.emplace_back();
        stages.back().push_back({static_cast<int32_t>(all[2]), all[3], all[4]});
    }
}

void add_ranks(World &world, Columns &from, const std::deque<Program> &programs, const std::deque<Actions> &actions) {
    for (int64_t capacity : from.column<int64_t>("capacities")) world.tiers.push_back({capacity});
    const auto numbers = from.column<int32_t>("ranks"), program_of = from.column<int32_t>("programs");
    const auto stored = from.column<int32_t>("stored"), stored_at = from.column<int32_t>("stored_at");
    const auto tiers = from.column<int32_t>("tiers"), links = from.column<int32_t>("link_paths");
    const auto meetings = from.column<int32_t>("meetings"), ports = from.column<int32_t>("port_paths");
    const auto kernels = from.column<int32_t>("kernel_paths");
    for (size_t i = 0; i < numbers.size(); i++) {
        const auto own = [&](Span<int32_t> table) { return row(table, i, numbers.size()); };
        Rank rank{};
        rank.number = numbers[i], rank.program = &programs[program_of[i]], rank.actions = &actions[program_of[i]];
        rank.tiers = copied(own(tiers)), rank.meetings = copied(own(meetings));
        rank.ports = copied(own(ports)), rank.kernels = copied(own(kernels));
        world.add_rank(std::move(rank), own(links), {stored.first + stored_at[i], stored.first + stored_at[i + 1]});
    }
}

// Tell the caller how many computes have ended, if it wants to know.
void tell(PyObject *progress, int64_t ended) {
    if (PyErr_CheckSignals() < 0) throw Raised{};
    if (progress == Py_None) return;
    PyObject *answer = PyObject_CallFunction(progress, "L", static_cast<long long>(ended));
    if (answer == nullptr) throw Raised{};
    Py_DECREF(answer);
}

// Replay a machine with its programs; return the tables, or None if that is left to the other engine.
PyObject *run(PyObject *, PyObject *arguments) {
    PyObject *machine, *programs, *progress;
    if (!PyArg_ParseTuple(arguments, "O!O!O", &PyDict_Type, &machine, &PyList_Type, &programs, &progress))
        return nullptr;
    try {
        std::deque<Columns> columns;
        std::deque<Program> read;
        std::deque<Actions> actions;
        for (Py_ssize_t i = 0; i < PyList_Size(programs); i++) {
            read.emplace_back(columns.emplace_back(PyList_GetItem(programs, i)));
            Counter(read.back(), actions.emplace_back());
        }
        Columns from(machine);
        World world;
        world.queue_depth = from.number("queue_depth"), world.launch_ns = from.number("launch_ns");
        add_network(world, from);
        add_meetings(world, from);
        add_ranks(world, from, read, actions);
        if (!world.run([&] { tell(progress, world.computes_ended); })) Py_RETURN_NONE;
        return Py_BuildValue("(NNNN)", world.spans.take(), world.waits.take(), world.residencies.take(),
                             world.network.rates.take());
    } catch (const NotCovered &) {
        Py_RETURN_NONE;
    } catch (const Raised &) {
        return nullptr;
    } catch (const std::exception &) {  // of the standard library: it has no room
        return PyErr_NoMemory();
    }
}

PyMethodDef methods[] = {
    {"run", run, METH_VARARGS, "Replay a machine (a dict of columns) with its programs (a list of such)."},
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
