// Deadlines for busy machines, as in tests/patience.py: tests state the maximum duration on a quiet machine.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

namespace jaxccomp::testing {

// The factor by which a thread is slower now than on a quiet machine, at least 1: runnable threads per processor, now
// or on average over the last minute.
inline double Slowdown() {
  double average = 0, last[2];
  int running = 0;
  if (std::FILE* file = std::fopen("/proc/loadavg", "r")) {
    static_cast<void>(std::fscanf(file, "%lf %lf %lf %d", &average, &last[0], &last[1], &running));
    std::fclose(file);
  }
  const double processors = std::max(1u, std::thread::hardware_concurrency());
  return std::max({1.0, average / processors, running / processors});
}

// Scales the maximum duration on a quiet machine.
inline std::chrono::milliseconds Scaled(std::chrono::milliseconds quiet, double slowdown = Slowdown()) {
  return std::chrono::milliseconds(static_cast<int64_t>(slowdown * static_cast<double>(quiet.count())));
}

// The same for the option timeout_seconds.
inline std::string ScaledSeconds(double quiet, double slowdown = Slowdown()) {
  return std::to_string(quiet * slowdown);
}

// Measures quiet seconds since construction: a thread divides each tick by the slowdown. A late tick counts as at most
// two, so time in which the machine stood still does not count.
class Stopwatch {
 public:
  double Seconds() const { return Now() - begun_; }

 private:
  static double Now() {
    static std::atomic<double>& now = *[] {
      auto* const clock = new std::atomic<double>(0);   // never deleted: its thread runs until the process ends
      std::thread([clock] {
        using std::chrono::steady_clock;
        constexpr std::chrono::duration<double> kTick(0.05);
        for (auto before = steady_clock::now();;) {
          std::this_thread::sleep_for(kTick);
          const auto after = steady_clock::now();
          const std::chrono::duration<double> took = after - before;
          clock->store(clock->load() + std::min(took, 2 * kTick).count() / Slowdown());
          before = after;
        }
      }).detach();
      return clock;
    }();
    return now.load();
  }

  double begun_ = Now();
};

}  // namespace jaxccomp::testing
