// A mock of libcuda.so.1. It implements the functions that the launcher calls, and prints every launch with its
// parameters. $KERNEL_PARAMS contains the sizes of the kernel's parameters ("8,8,4"), $KERNEL_CLUSTER the cluster width
// that the kernel was compiled with, $COMPUTE_CAPABILITY that of the GPU ("90"), $CONTEXT the current context ("1"), and
// $FAILING the function that fails.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int answer(const char *call) {
  const char *failing = getenv("FAILING");
  return failing && !strcmp(failing, call) ? 700 : 0;
}

static int param_size(size_t index) {
  const char *at = getenv("KERNEL_PARAMS");
  for (; at && index > 0; --index) {
    at = strchr(at, ',');
    if (at) ++at;
  }
  return at ? atoi(at) : 0;
}

int cuInit(unsigned flags) { return answer("cuInit"); }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return answer("cuCtxGetDevice"); }
int cuCtxGetCurrent(void **context) {
  const char *current = getenv("CONTEXT");
  *context = (void *)(current ? atol(current) : 1);
  return answer("cuCtxGetCurrent");
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const char *capability = getenv("COMPUTE_CAPABILITY");
  int sm = capability ? atoi(capability) : 121;
  *value = attribute == 75 ? sm / 10 : attribute == 76 ? sm % 10 : -1;  // compute capability, major and minor
  return 0;
}
int cuGetErrorString(int error, const char **text) { *text = "an illegal memory access was encountered"; return 0; }
int cuLibraryLoadData(void **library, const void *code, int *o, void **ov, unsigned on, int *l, void **lv,
                      unsigned ln) {
  printf("load %.4s\n", (const char *)code);
  *library = (void *)0x11;
  return answer("cuLibraryLoadData");
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  printf("kernel %s\n", name);
  *kernel = (void *)0x22;
  return answer("cuLibraryGetKernel");
}
int cuKernelGetFunction(void **function, void *kernel) { *function = (void *)0x33; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  const char *width = getenv("KERNEL_CLUSTER");
  *value = attribute == 11 && width ? atoi(width) : 0;  // CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
  return 0;
}
int cuKernelGetParamInfo(void *kernel, size_t index, size_t *offset, size_t *size) {
  *offset = 0;
  *size = param_size(index);
  return *size ? 0 : 1;
}

struct Attribute { int id, pad; unsigned value[16]; };
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream;
  struct Attribute *attributes;
  unsigned count;
};
int cuLaunchKernelEx(const struct Config *config, void *function, void **params, void **extra) {
  printf("launch %p stream %p grid %u,%u,%u block %u,%u,%u shared %u", function, config->stream, config->grid[0],
         config->grid[1], config->grid[2], config->block[0], config->block[1], config->block[2], config->shared);
  for (unsigned i = 0; i < config->count; ++i) {
    const struct Attribute *a = &config->attributes[i];
    printf(" attribute %d:%u,%u,%u", a->id, a->value[0], a->value[1], a->value[2]);
  }
  printf(" params");
  for (size_t i = 0; param_size(i); ++i) {
    if (param_size(i) == 8) printf(" %llx", *(unsigned long long *)params[i]);
    else printf(" %d", *(int *)params[i]);
  }
  printf("\n");
  fflush(stdout);
  return answer("cuLaunchKernelEx");
}

int cuGetProcAddress_v2(const char *symbol, void **found, int version, unsigned long long flags, int *status) {
  Dl_info own;
  dladdr((void *)cuInit, &own);
  *found = dlsym(dlopen(own.dli_fname, RTLD_LAZY), symbol);
  if (status) *status = *found ? 0 : 1;
  return *found ? 0 : 500;
}
int cuGetProcAddress(const char *symbol, void **found, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, found, version, flags, NULL);
}
