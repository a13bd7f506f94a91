// Stands in until the replay is there: the module, with what it was made of.
#include <Python.h>

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_replay", nullptr, 0, nullptr, nullptr, nullptr, nullptr, nullptr};

PyMODINIT_FUNC PyInit__replay() {
    PyObject *module = PyModule_Create(&definition);
    if (module != nullptr && PyModule_AddStringConstant(module, "sources", HOSIM_SOURCES) < 0) Py_CLEAR(module);
    return module;
}
