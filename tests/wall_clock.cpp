// The time of day, moved by the seconds in the file $WALL_CLOCK. Preloaded, these functions stand in for the C library's,
// in programs whose name begins with $WALL_CLOCK_PROGRAM. Deadlines of waits by the time of day are moved back, so that
// they wait as long as they were told to. A deadline that is no time of day, because that wait has a steady clock, stays
// as it is. The kernel's clock is not moved, so programs that tell it a time of day by themselves wait too long.

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

const time_t kFirstDay = 1000000000;  // in 2001; no machine has been up for so long
const volatile int64_t* moved = nullptr;

__attribute__((constructor)) void open_file() {
  const char* path = getenv("WALL_CLOCK");
  const char* name = getenv("WALL_CLOCK_PROGRAM");
  if (name && strncmp(program_invocation_short_name, name, strlen(name)) != 0) return;
  const int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* at = mmap(nullptr, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (at != MAP_FAILED) moved = static_cast<const volatile int64_t*>(at);
}

time_t shift() { return moved ? static_cast<time_t>(*moved) : 0; }

timespec unmoved(const timespec* deadline) {
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
  const timespec found = unmoved(deadline);
  return real(mutex, &found);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline) {
  static const auto real =
      next<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>("pthread_cond_timedwait");
  const timespec found = unmoved(deadline);
  return real(condition, mutex, &found);
}

int sem_timedwait(sem_t* semaphore, const timespec* deadline) {
  static const auto real = next<int (*)(sem_t*, const timespec*)>("sem_timedwait");
  const timespec found = unmoved(deadline);
  return real(semaphore, &found);
}

}  // extern "C"
