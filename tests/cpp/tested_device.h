// What tests ask of a device that they run on: its memory, and what goes wrong with it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/device.h"
#include "fake_memory.h"

namespace jaxccomp::testing {

// What goes wrong, and when: the n-th from now on, from 1; 0: never.
struct Faults {
  std::atomic<int> computation{0};
  std::atomic<int> values_allocation{0}, codes_allocation{0};
  std::atomic<int> enter{0}, ready{0}, preparation{0};
  std::atomic<int> shared_allocation{0}, import{0};

  static bool Due(std::atomic<int>& fault) { return fault.load() > 0 && --fault == 0; }
};

class TestedDevice {
 public:
  virtual ~TestedDevice() = default;
  virtual Device& device() = 0;
  // Computations run only while it is not held.
  virtual void Hold(bool held) = 0;
  // Its streams have stopped for good: what the engine left there is not looked for.
  virtual void Abandon() = 0;
  // How many were started; on a GPU, their parts.
  virtual int64_t computations() const = 0;
  // How often a caller's stream was made to wait for the engine.
  virtual int64_t held_streams() const = 0;
  // How often it was asked to prepare a codec. Those of nvCOMP need it.
  virtual int64_t preparations() const = 0;

  Faults faults;
  FakeMemory memory;
};

enum class DeviceKind { kFake, kCuda };
// Whether the calling thread has a device of that kind as its current GPU.
bool HasCurrent(DeviceKind kind);
// The codecs that it does not run: "ternary", and "dgc|lossless".
std::shared_ptr<TestedDevice> MakeDevice(DeviceKind kind, uint32_t seed, int streams,
                                         int longest_delay_us);

}  // namespace jaxccomp::testing

// A test of each kind of device: its body has `kind`.
#define DEVICE_TEST(name)                                                       \
  static void On_##name(::jaxccomp::testing::DeviceKind kind);                  \
  TEST(name) { On_##name(::jaxccomp::testing::DeviceKind::kFake); }             \
  TEST(cuda_##name) { On_##name(::jaxccomp::testing::DeviceKind::kCuda); }      \
  static void On_##name(::jaxccomp::testing::DeviceKind kind)
