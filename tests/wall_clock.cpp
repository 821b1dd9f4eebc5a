// Shifts the wall clock by the number of seconds in the file $WALL_CLOCK. When preloaded, these functions replace those
// of the C library in programs whose name begins with $WALL_CLOCK_PROGRAM. Deadlines of timed waits are shifted back,
// so waits take as long as requested; deadlines of a monotonic clock are not changed. The kernel's clock is not
// shifted, so programs that pass a wall-clock deadline directly to the kernel wait too long.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

const time_t kFirstDay = 1000000000;  // in 2001; monotonic clocks are below, because no machine has been up for so long
const volatile int64_t* shift_seconds = nullptr;

__attribute__((constructor)) void open_file() {
  const char* path = getenv("WALL_CLOCK");
  const char* name = getenv("WALL_CLOCK_PROGRAM");
  if (name && strncmp(program_invocation_short_name, name, strlen(name)) != 0) return;
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* at = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) shift_seconds = static_cast<const volatile int64_t*>(at);
}

time_t shift() { return shift_seconds ? static_cast<time_t>(*shift_seconds) : 0; }

timespec unshifted(const timespec* deadline) {
  timespec found = *deadline;
  if (found.tv_sec > kFirstDay) found.tv_sec -= shift();
  return found;
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return static_cast<int>(failed);
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* into) noexcept {
  timespec found;
  clock_gettime(CLOCK_REALTIME, &found);
  if (into) *into = found.tv_sec;
  return found.tv_sec;
}

int pthread_mutex_timedlock(pthread_mutex_t* mutex, const timespec* deadline) noexcept {
  static const auto real = next<int (*)(pthread_mutex_t*, const timespec*)>("pthread_mutex_timedlock");
  const timespec found = unshifted(deadline);
  return real(mutex, &found);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  static const auto real =
      next<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  const timespec found = unshifted(deadline);
  return real(condition, mutex, &found);
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static const auto real = next<int (*)(sem_t*, const timespec*)>("sem_timedwait");
  const timespec found = unshifted(deadline);
  return real(semaphore, &found);
}

}  // extern "C"
