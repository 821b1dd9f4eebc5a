// Kernel loading and launch through the CUDA driver. The driver is opened when the first kernel is loaded, so the
// library also loads on machines without a GPU.

namespace peagle {

struct LaunchAttribute {  // CUlaunchAttribute
  std::int32_t id;
  std::int32_t padding;
  std::uint32_t value[16];
};
struct LaunchConfig {  // CUlaunchConfig
  std::uint32_t grid[3], block[3];
  std::uint32_t shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  std::uint32_t num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56, "layouts of the driver API");

constexpr int kInvalidValue = 1;             // CUDA_ERROR_INVALID_VALUE
constexpr int kMajor = 75, kMinor = 76;      // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
constexpr int kCompiledClusterWidth = 11;    // CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
constexpr int kClusterDimension = 4;         // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kFirstWithClusters = 90;

struct Driver {  // functions return 0 on success
  int (*cuInit)(unsigned flags);
  int (*cuCtxGetDevice)(int* device);
  int (*cuDeviceGetAttribute)(int* value, int attribute, int device);
  int (*cuGetErrorString)(int error, const char** text);
  int (*cuLibraryLoadData)(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned);
  int (*cuLibraryGetKernel)(void** kernel, void* library, const char* name);
  int (*cuKernelGetFunction)(void** function, void* kernel);
  int (*cuKernelGetParamInfo)(void* kernel, std::size_t index, std::size_t* offset, std::size_t* size);
  int (*cuFuncGetAttribute)(int* value, int attribute, void* function);
  int (*cuLaunchKernelEx)(const LaunchConfig*, void* function, void** parameters, void** extra);
  std::string problem;  // why the driver cannot be used; empty if it can

  std::string describe(int error) const {
    const char* text = nullptr;
    cuGetErrorString(error, &text);
    return "CUDA error " + std::to_string(error) + ": " + (text ? text : "unknown error");
  }

  static const Driver& get() {
    static const Driver driver = [] {
      Driver found{};
      void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) {
        const char* error_text = dlerror();
        found.problem = error_text ? error_text : "cannot load libcuda.so.1";
        return found;
      }
      const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
        if (function == nullptr && found.problem.empty()) {
          found.problem = std::string("the NVIDIA driver is too old: it has no ") + name;
        }
      };
#define FIND(name) find(found.name, #name)
      FIND(cuInit), FIND(cuCtxGetDevice), FIND(cuDeviceGetAttribute), FIND(cuGetErrorString), FIND(cuLibraryLoadData);
      FIND(cuLibraryGetKernel), FIND(cuKernelGetFunction), FIND(cuKernelGetParamInfo), FIND(cuFuncGetAttribute);
      FIND(cuLaunchKernelEx);
#undef FIND
      if (found.problem.empty()) {
        if (const int error = found.cuInit(0)) found.problem = "CUDA failed to initialize: " + found.describe(error);
      }
      return found;
    }();
    return driver;
  }
};

// The kernel of one op, loaded for one GPU. Its code stays loaded until the process ends, because a CUDA graph that
// captured a launch may outlive all plugins. Allocates no device memory.
class Launcher {
 public:
  // Returns an error message, or an empty string. Needs a current context. Called before any stream capture, because
  // loading during capture is not allowed.
  std::string load(const Op& op) {
    const Driver& driver = Driver::get();
    if (!driver.problem.empty()) return driver.problem;
    int device, major, minor;
    if (driver.cuCtxGetDevice(&device)) return "there is no current CUDA context";
    if (driver.cuDeviceGetAttribute(&major, kMajor, device) || driver.cuDeviceGetAttribute(&minor, kMinor, device)) {
      return "cannot read the compute capability of the GPU";
    }
    const int sm = 10 * major + minor;
    const Cubin* best = nullptr;
    std::string there;
    for (int i = 0; i < op.num_cubins; ++i) {
      const Cubin& each = op.cubins[i];
      there += (there.empty() ? "sm_" : ", sm_") + std::to_string(each.sm);
      if (each.sm / 10 == major && each.sm <= sm && (best == nullptr || best->sm < each.sm)) best = &each;
    }
    if (best == nullptr) {
      return "this library has no kernel for sm_" + std::to_string(sm) + ", only for " + there;
    }
    cluster_ = sm >= kFirstWithClusters ? op.cluster : 1;
    void* library = nullptr;
    if (const int error = load_library(driver, *best, &library)) return driver.describe(error);
    kernels_.clear();
    for (int i = 0; i < op.num_entries; ++i) {
      const std::string problem = add_entry(driver, op, library, op.entries[i]);
      if (!problem.empty()) return std::string(op.entries[i]) + ": " + problem;
    }
    return "";
  }

  // Launches asynchronously; returns an error message, or an empty string. `sizes` are the sizes of the op's symbols,
  // all known.
  std::string launch(const Op& op, int entry, const std::vector<Size>& sizes, const void* const* inputs,
                     void* const* outputs, void* stream) const {
    const std::int64_t blocks = evaluate(op.blocks, sizes, nullptr).value * (op.per < 0 ? 1 : sizes[op.per].value);
    const std::int64_t max = std::numeric_limits<std::int32_t>::max() / cluster_;
    if (blocks < 0 || blocks > max) return format_text("cannot launch %lld blocks", static_cast<long long>(blocks));
    if (blocks == 0) return "";
    std::vector<const void*> pointers(inputs, inputs + op.num_inputs);
    pointers.insert(pointers.end(), outputs, outputs + op.num_outputs);
    std::vector<std::int32_t> scalars;
    for (int i = 0; i < op.num_scalars; ++i) scalars.push_back(std::int32_t(sizes[op.scalars[i]].value));
    std::vector<void*> parameters;
    for (int i = 0; i < op.num_inputs; ++i) parameters.push_back(&pointers[i]);
    for (std::int32_t& scalar : scalars) parameters.push_back(&scalar);
    for (int i = 0; i < op.num_outputs; ++i) parameters.push_back(&pointers[op.num_inputs + i]);
    const LaunchAttribute cluster{kClusterDimension, 0, {std::uint32_t(cluster_), 1, 1}};
    LaunchConfig config{{0, 1, 1}, {std::uint32_t(op.threads), 1, 1}, 0, stream, nullptr, 0};
    config.grid[0] = std::uint32_t(blocks * cluster_);
    if (cluster_ > 1 && !kernels_[entry].is_cluster_compiled) config.attributes = &cluster, config.num_attributes = 1;
    const Driver& driver = Driver::get();
    const int error = driver.cuLaunchKernelEx(&config, kernels_[entry].kernel, parameters.data(), nullptr);
    return error ? "the launch failed: " + driver.describe(error) : "";
  }

 private:
  struct Entry {
    void* kernel;  // valid in every context
    bool is_cluster_compiled;
  };

  static int load_library(const Driver& driver, const Cubin& cubin, void** library) {
    static std::mutex mutex;
    static std::map<const Cubin*, void*> loaded;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto there = loaded.find(&cubin);
    if (there != loaded.end()) {
      *library = there->second;
      return 0;
    }
    const int error = driver.cuLibraryLoadData(library, cubin.begin, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (!error) loaded[&cubin] = *library;
    return error;
  }

  std::string add_entry(const Driver& driver, const Op& op, void* library, const char* name) {
    void *kernel, *function;
    if (const int error = driver.cuLibraryGetKernel(&kernel, library, name)) return driver.describe(error);
    if (const int error = driver.cuKernelGetFunction(&function, kernel)) return driver.describe(error);
    int width = 0;
    const int failed = driver.cuFuncGetAttribute(&width, kCompiledClusterWidth, function);
    if (failed) return driver.describe(failed);
    if (width && width != cluster_)
      return format_text("the kernel was compiled for clusters of %d blocks, not %d", width, cluster_);
    const int count = op.num_inputs + op.num_scalars + op.num_outputs;
    for (int i = 0; i <= count; ++i) {
      const bool is_scalar = i >= op.num_inputs && i < op.num_inputs + op.num_scalars;
      std::size_t offset, size = 0;
      const int error = driver.cuKernelGetParamInfo(kernel, i, &offset, &size);
      const bool is_valid = i == count ? error == kInvalidValue : !error && size == (is_scalar ? 4 : 8);
      if (!is_valid) return format_text("parameter %d of the kernel differs from the spec", i);
    }
    kernels_.push_back({kernel, width != 0});
    return "";
  }

  int cluster_ = 1;
  std::vector<Entry> kernels_;
};

}  // namespace peagle
