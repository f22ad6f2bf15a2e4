// The only place that starts threads and allocates scratch. One pool a process: its threads spin briefly after a job,
// then sleep. One job at a time; a caller that finds the pool busy does its work alone. A forked child starts afresh.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

#include <pthread.h>
#include <signal.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "runtime.h"

namespace {

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// All threads work in the default mode (nearest even, subnormals kept), so that a row's bits do not depend on which
// thread took it or on what the caller did to its own; the caller's mode comes back afterwards.
class DefaultFloatMode {
 public:
  DefaultFloatMode() {
#if defined(__x86_64__)
    saved_ = _mm_getcsr();
    if (saved_ != kDefault) _mm_setcsr(kDefault);
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if (saved_ != kDefault) asm volatile("msr fpcr, %0" : : "r"(uint64_t(kDefault)));
#endif
  }
  ~DefaultFloatMode() {
#if defined(__x86_64__)
    _mm_setcsr(saved_);
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(saved_));
#endif
  }

 private:
#if defined(__x86_64__)
  static constexpr unsigned kDefault = 0x1f80;
  unsigned saved_ = kDefault;
#elif defined(__aarch64__)
  static constexpr uint64_t kDefault = 0;
  uint64_t saved_ = kDefault;
#endif
};

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kPollEvery = std::chrono::milliseconds(20);

struct Pool {
  std::mutex busy;  // held by the caller whose job runs
  std::mutex lock;  // guards what follows
  std::condition_variable wake, left;
  std::atomic<uint64_t> ticket{0};
  std::atomic<int> inside{0};  // threads at work on the job
  int open = 0;                // how many more may join
  int joined = 0;
  void (*work)(void *, int) = nullptr;
  void *context = nullptr;
  int threads = 0;
};

// Never destroyed: its threads may still sleep in it while the process ends.
std::atomic<Pool *> the_pool{nullptr};
std::atomic<uint64_t> generation{0};

void forget_pool() {
  the_pool.store(nullptr);
  ++generation;
}

Pool *pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  (void)registered;
  Pool *now = the_pool.load();
  if (now) return now;
  Pool *fresh = new (std::nothrow) Pool;
  if (fresh && !the_pool.compare_exchange_strong(now, fresh)) {
    delete fresh;
    return now;
  }
  return fresh;
}

template <class Ready> bool spin_until(Ready ready) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      relax();
    }
    if (std::chrono::steady_clock::now() - begin > kSpin) return ready();
  }
}

void serve(Pool *p) {
  uint64_t seen = 0;
  for (;;) {
    void (*work)(void *, int);
    void *context;
    int worker;
    const auto news = [&] { return p->ticket.load(std::memory_order_acquire) != seen; };
    spin_until(news);
    {
      std::unique_lock<std::mutex> hold(p->lock);
      p->wake.wait(hold, news);
      seen = p->ticket.load();
      if (p->open == 0) continue;  // came too late
      --p->open;
      worker = ++p->joined;
      work = p->work, context = p->context;
      p->inside.fetch_add(1);
    }
    {
      DefaultFloatMode mode;
      work(context, worker);
    }
    std::lock_guard<std::mutex> hold(p->lock);
    if (p->inside.fetch_sub(1) == 1) p->left.notify_all();
  }
}

// Brings the pool up to `threads`, or as near as the system lets it. Signals are for the caller's threads.
void grow(Pool *p, int threads) {
  if (p->threads >= threads) return;
  sigset_t every, before;
  sigfillset(&every);
  // But what an instruction itself brings on comes to the thread that ran it, and a blocked one ends the process unheard.
  for (const int own : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) sigdelset(&every, own);
  pthread_sigmask(SIG_SETMASK, &every, &before);
  try {
    for (; p->threads < threads; ++p->threads) std::thread(serve, p).detach();
  } catch (...) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

int run_alone(void (*work)(void *, int), void *context) {
  DefaultFloatMode mode;
  work(context, 0);
  return 0;
}

}  // namespace

extern "C" void *qkv_allocate(size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  if (rounded < bytes) return nullptr;
  return std::aligned_alloc(64, rounded ? rounded : 64);
}

extern "C" void qkv_release(void *memory) { std::free(memory); }

extern "C" int qkv_parallel(int threads, void (*work)(void *, int), void *context, int (*poll)(void *), void *poll_context) {
  if (threads <= 1) return run_alone(work, context);
  Pool *p = pool();
  if (!p) return run_alone(work, context);
  std::unique_lock<std::mutex> mine(p->busy, std::try_to_lock);
  if (!mine.owns_lock()) return run_alone(work, context);
  const uint64_t born = generation.load();

  grow(p, threads - 1);
  int open;
  {
    std::lock_guard<std::mutex> hold(p->lock);
    p->work = work, p->context = context;
    p->joined = 0, p->open = open = threads - 1 < p->threads ? threads - 1 : p->threads;
    p->ticket.fetch_add(1, std::memory_order_release);
  }
  for (int i = 0; i < open; ++i) p->wake.notify_one();
  run_alone(work, context);

  // A signal handler that poll ran may have forked: the child has none of the threads that held the other tasks, and
  // perhaps a lock that nobody will open.
  const auto forked = [&] { return generation.load() != born; };
  if (forked()) return mine.release(), 1;
  {
    std::lock_guard<std::mutex> hold(p->lock);
    p->open = 0;  // whoever has not come by now need not
  }
  const auto done = [&] { return p->inside.load(std::memory_order_acquire) == 0; };
  int stop = 0;
  if (spin_until(done)) return stop;
  for (;;) {
    {
      std::unique_lock<std::mutex> hold(p->lock);
      if (p->left.wait_for(hold, kPollEvery, done)) return stop;
    }
    if (poll && !stop) stop = poll(poll_context);
    if (forked()) return mine.release(), 1;
  }
}
