// Exported symbols, and registration of the plugins when the library is loaded.
//
// A plugin registry that loads the library (IPluginRegistry::loadLibrary, trtexec --dynamicPlugins) calls
// `getCreators`. Other programs (polygraphy --plugins, trtexec --staticPlugins, Triton's backend) only dlopen the
// library and expect it to register its plugins; `on_load` registers them with every TensorRT library in the process.

namespace peagle {

using nvinfer1::v_1_0::IPluginCreatorInterface;

inline const std::vector<IPluginCreatorInterface*>& creators() {
  static const auto* const all = [] {  // never freed: the registry keeps pointers until the process ends
    auto* list = new std::vector<IPluginCreatorInterface*>;
    for (const Op& op : kOps) list->push_back(new Creator(op));
    return list;
  }();
  return *all;
}

inline bool is_tensorrt(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.rfind("libnvinfer.so", 0) == 0 || name.rfind("libtensorrt_rtx.so", 0) == 0;
}

// Returns true if TensorRT is on the call stack.
inline bool is_opened_by_tensorrt() {
  bool is_tensorrt_frame = false;
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* result) {
        Dl_info info;
        const auto address = reinterpret_cast<void*>(_Unwind_GetIP(frame));
        const bool is_named = dladdr(address, &info) && info.dli_fname;
        if (is_named && is_tensorrt(info.dli_fname)) *static_cast<bool*>(result) = true;
        return _URC_NO_REASON;
      },
      &is_tensorrt_frame);
  return is_tensorrt_frame;
}

// Calls IPluginRegistry::registerCreator, whose index in the virtual function table depends on TensorRT's version.
inline bool register_creator(void* registry, int version, bool is_rtx, IPluginCreatorInterface& creator) {
  const int major = version / 10000;
  const int index = is_rtx ? (version >= 10700 && major == 1 ? 8 : -1) : major == 10 ? 12 : major == 11 ? 8 : -1;
  if (index < 0) {
    fail("TensorRT " + std::to_string(version) +
         " is not supported: load this library with loadLibrary of TensorRT's registry");
    return false;
  }
  using Register = bool (*)(void*, IPluginCreatorInterface&, const char*);
  return (*static_cast<Register**>(registry))[index](registry, creator, kNamespace);
}

// Registers the plugins with a TensorRT library. Returns false if the library has no registry.
inline bool register_with(const std::string& path, int flags) {
  void* const library = dlopen(path.c_str(), RTLD_LAZY | flags);
  if (library == nullptr) return false;
  const auto version = reinterpret_cast<std::int32_t (*)()>(dlsym(library, "getInferLibVersion"));
  const auto registry = reinterpret_cast<void* (*)()>(dlsym(library, "getPluginRegistry"));
  if (version == nullptr || registry == nullptr) return false;
  const bool is_rtx = path.find("libtensorrt_rtx.so") != std::string::npos;
  for (auto* creator : creators()) {
    if (!register_creator(registry(), version(), is_rtx, *creator)) break;
  }
  return true;
}

[[gnu::constructor]] static void on_load() {
  if (is_opened_by_tensorrt()) return;
  std::vector<std::string> paths;  // collect first: dl_iterate_phdr holds a lock of the loader
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* into) {
        const std::string path = object->dlpi_name ? object->dlpi_name : "";
        if (is_tensorrt(path)) static_cast<std::vector<std::string>*>(into)->push_back(path);
        return 0;
      },
      &paths);
  for (const std::string& path : paths) register_with(path, RTLD_NOLOAD);
  // Load TensorRT, as a library linked to it would. Outside of the loader's search path, it must be loaded first.
  if (!paths.empty() || register_with("libnvinfer.so.11", 0) || register_with("libnvinfer.so.10", 0)) return;
  fail(
      "TensorRT is not loaded in this process: load this library after TensorRT, or with loadLibrary of TensorRT's "
      "registry");
}

}  // namespace peagle

#define PEAGLE_EXPORT extern "C" __attribute__((visibility("default")))
PEAGLE_EXPORT nvinfer1::v_1_0::IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
  count = std::int32_t(peagle::creators().size());
  return peagle::creators().data();
}
PEAGLE_EXPORT void setLoggerFinder(void*) {}  // required by TensorRT; unused, see `fail`
