// A mock of libnvinfer with only a plugin registry. VERSION is TensorRT's version; POSITION is the index of
// registerCreator in the registry's virtual function table.
#include <cstdint>
#include <cstdio>

namespace {
struct Creator {
  const void* const* functions;
};
bool registers(void*, Creator* creator, const char* name_space) {
  using Name = const char* (*)(const Creator*);
  std::printf("%s::%s\n", name_space, reinterpret_cast<Name>(creator->functions[6])(creator));
  std::fflush(stdout);
  return true;
}
void other() { std::puts("another function of the registry"); }
const void* functions[20];
const void* const* registry = functions;
}  // namespace

extern "C" std::int32_t getInferLibVersion() { return VERSION; }
extern "C" void* getPluginRegistry() {
  for (const void*& each : functions) each = reinterpret_cast<const void*>(other);
  functions[POSITION] = reinterpret_cast<const void*>(registers);
  return &registry;
}
