// A stream of a fake GPU: does what it is given in order, after random delays, on a thread of its own.
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
  ~FakeStream();   // does what is left
  void Push(std::function<void()> work);
  // Waits until all that was pushed is done.
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
