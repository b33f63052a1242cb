// A stream of a fake GPU: runs work in order, after random delays, on its own thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace jaxccomp::testing {

class FakeStream {
 public:
  explicit FakeStream(uint32_t seed, int longest_delay_us = 100);
  ~FakeStream();   // runs the remaining work
  void Push(std::function<void()> work);
  // Waits until all work pushed so far is done.
  void Finish();

 private:
  void Loop();

  std::minstd_rand random_;
  const int longest_delay_us_;
  std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false, ended_ = false;
  std::thread thread_;
};

}  // namespace jaxccomp::testing
