// What a process that opens this library finds, and what happens when it does.
//
// A registry that opens it (IPluginRegistry::loadLibrary, trtexec --dynamicPlugins) asks `getCreators`.  A program that
// opens it (polygraphy --plugins, trtexec --staticPlugins, Triton's backend) expects the plugins to be registered by
// then: that is done here, with every TensorRT that is in the process.

namespace peagle {

using nvinfer1::v_1_0::IPluginCreatorInterface;

inline const std::vector<IPluginCreatorInterface*>& creators() {
  static const auto* const all = [] {  // for ever: the registry has them until the process ends
    auto* made = new std::vector<IPluginCreatorInterface*>;
    for (const Op& op : kOps) made->push_back(new Creator(op));
    return made;
  }();
  return *all;
}

inline bool is_tensorrt(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.rfind("libnvinfer.so", 0) == 0 || name.rfind("libtensorrt_rtx.so", 0) == 0;
}

// Whether one of the functions that led here is TensorRT's own.
inline bool is_opened_by_tensorrt() {
  bool is_so = false;
  _Unwind_Backtrace(
      [](_Unwind_Context* frame, void* found) {
        Dl_info place;
        const auto address = reinterpret_cast<void*>(_Unwind_GetIP(frame));
        const bool is_named = dladdr(address, &place) && place.dli_fname;
        if (is_named && is_tensorrt(place.dli_fname)) *static_cast<bool*>(found) = true;
        return _URC_NO_REASON;
      },
      &is_so);
  return is_so;
}

// IPluginRegistry::registerCreator, whose place in the table of functions depends on TensorRT's version.
inline bool register_creator(void* registry, int version, bool is_rtx, IPluginCreatorInterface& creator) {
  const int major = version / 10000;
  const int position = is_rtx ? (version >= 10700 && major == 1 ? 8 : -1) : major == 10 ? 12 : major == 11 ? 8 : -1;
  if (position < 0) {
    fail("TensorRT " + std::to_string(version) + " is unknown here: open this with loadLibrary of its registry");
    return false;
  }
  using Register = bool (*)(void*, IPluginCreatorInterface&, const char*);
  return (*static_cast<Register**>(registry))[position](registry, creator, kNamespace);
}

// Whether it could be asked.
inline bool register_with(const std::string& path, int how) {
  void* const library = dlopen(path.c_str(), RTLD_LAZY | how);
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

[[gnu::constructor]] static void opened() {
  if (is_opened_by_tensorrt()) return;
  std::vector<std::string> found;  // nothing is called while the loader goes through its list
  dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void* into) {
        const std::string path = object->dlpi_name ? object->dlpi_name : "";
        if (is_tensorrt(path)) static_cast<std::vector<std::string>*>(into)->push_back(path);
        return 0;
      },
      &found);
  for (const std::string& path : found) register_with(path, RTLD_NOLOAD);
  // As a library that is linked to TensorRT would bring it; one that is not where the system looks must come first.
  if (!found.empty() || register_with("libnvinfer.so.11", 0) || register_with("libnvinfer.so.10", 0)) return;
  fail("TensorRT is not loaded in this process: load this library after TensorRT, or with loadLibrary of TensorRT's registry");
}

}  // namespace peagle

#define PEAGLE_EXPORT extern "C" __attribute__((visibility("default")))
PEAGLE_EXPORT nvinfer1::v_1_0::IPluginCreatorInterface* const* getCreators(std::int32_t& count) {
  count = std::int32_t(peagle::creators().size());
  return peagle::creators().data();
}
PEAGLE_EXPORT void setLoggerFinder(void*) {}  // asked for by TensorRT; see `fail`
