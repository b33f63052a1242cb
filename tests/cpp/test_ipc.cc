// What device IPC is made of: blocks of shared memory, descriptors, handles and offers, and what becomes of
// them when their bytes change on the way.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "device/ipc/descriptor.h"
#include "device/ipc/device_ipc.h"
#include "device/shared_arena.h"
#include "device/shared_handle.h"
#include "fake_cuda.h"
#include "fake_device.h"

namespace jaxccomp {
namespace {

using testing::DeviceKind;
using testing::FakeCudaDevice;
using testing::FakeDevice;
using testing::MakeDevice;
using testing::TestedDevice;

constexpr int64_t kMemoryBytes = 4 << 20;

TEST(shared_arena_hands_out_and_takes_back) {
  std::vector<std::byte> memory(1 << 16);
  SharedArena arena(nullptr, memory.data(), std::ssize(memory));
  std::minstd_rand random(3);
  struct Taken {
    std::shared_ptr<SharedArena::Block> block;
    std::byte mark;
  };
  std::vector<Taken> taken;
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0 && !taken.empty()) {
      const size_t at = random() % taken.size();
      for (int64_t j = 0; j < taken[at].block->bytes; ++j) {
        if (taken[at].block->memory()[j] != taken[at].mark) CHECK(false);   // written by another
      }
      taken.erase(taken.begin() + static_cast<ptrdiff_t>(at));
      continue;
    }
    auto block = arena.Take(static_cast<int64_t>(random() % 9000));
    if (block == nullptr) {
      ++refused;
      continue;
    }
    CHECK_EQ(block->offset % SharedArena::kAlignment, 0);
    CHECK(block->offset + block->bytes <= arena.bytes);
    const auto mark = static_cast<std::byte>(random());
    std::memset(block->memory(), static_cast<int>(mark), static_cast<size_t>(block->bytes));
    taken.push_back({std::move(block), mark});
  }
  CHECK(refused > 100);
  CHECK(arena.Take(arena.bytes) == nullptr);
  taken.clear();
  CHECK_EQ(arena.taken_bytes(), 0);
  CHECK(arena.Take(arena.bytes) != nullptr);
}

std::span<const std::byte> BytesOf(const std::string& text) {
  return std::as_bytes(std::span(text));
}

IpcDescriptor SomeDescriptor() {
  IpcDescriptor descriptor{7, 2, 1, false, true, 0, {}};
  descriptor.pieces = {{0, 100, 5}, {112, 0, 6}, {1024, 77, 7}};
  descriptor.payload_bytes = PayloadBytes(descriptor.pieces, false, true);
  return descriptor;
}

TEST(ipc_descriptors_come_as_they_went) {
  const IpcDescriptor sent = SomeDescriptor();
  const Result<IpcDescriptor> got = ReadDescriptor(BytesOf(WriteDescriptor(sent)));
  if (!CHECK_OK(got)) return;
  CHECK_EQ(got->number, sent.number);
  CHECK_EQ(got->exporter, sent.exporter);
  CHECK_EQ(got->memory, sent.memory);
  CHECK(got->referenced && !got->packed);
  CHECK_EQ(got->payload_bytes, 3 * 12 + 177);
  CHECK_EQ(got->pieces.size(), 3u);
  CHECK_EQ(got->pieces[2].offset, 1024);
  CHECK_EQ(got->pieces[2].ref_checksum, 7u);
}

TEST(ipc_descriptors_that_changed_are_refused) {
  const std::string sent = WriteDescriptor(SomeDescriptor());
  for (size_t i = 0; i < sent.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = sent;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      CHECK_EQ(ReadDescriptor(BytesOf(changed)).status().code(), Code::kDataLoss);
    }
    CHECK_EQ(ReadDescriptor(BytesOf(sent.substr(0, i))).status().code(), Code::kDataLoss);
  }
  // With the right checksum, too.
  const auto refused = [](auto change) {
    IpcDescriptor descriptor = SomeDescriptor();
    change(&descriptor);
    CHECK_EQ(ReadDescriptor(BytesOf(WriteDescriptor(descriptor))).status().code(), Code::kDataLoss);
  };
  refused([](IpcDescriptor* t) { t->pieces[0].bytes = -1; });
  refused([](IpcDescriptor* t) { t->pieces[0].offset = -256; });
  refused([](IpcDescriptor* t) { t->pieces[1].bytes = INT64_MAX; });
  refused([](IpcDescriptor* t) { t->payload_bytes += 1; });
  refused([](IpcDescriptor* t) { t->pieces.clear(); });
  refused([](IpcDescriptor* t) { t->packed = true; });
  refused([](IpcDescriptor* t) { t->pieces.resize(IpcDescriptor::kMostPieces + 1); });
}

// Of another process, in which the device has memory of its own.
struct Exporter {
  explicit Exporter(DeviceKind kind) : device(MakeDevice(kind, 1, 1, 0)), ipc(0, &arenas) {
    ipc.SetLeastBytes(1000);
    Device* const own = &device->device();
    offer = ipc.Offer({&own, 1}, kMemoryBytes);
  }
  ~Exporter() {
    ipc.Forget({});
    arenas.Forget({});
  }
  std::shared_ptr<TestedDevice> device;
  SharedArenas arenas;
  DeviceIpc ipc;
  std::string offer;
};

DEVICE_TEST(ipc_handles_that_changed_are_refused) {
  const std::shared_ptr<TestedDevice> exporter = MakeDevice(kind, 1, 1, 0);
  const std::shared_ptr<TestedDevice> importer = MakeDevice(kind, 2, 1, 0);
  std::byte* const memory = exporter->device().AllocateShared(kMemoryBytes);
  const Result<std::string> handle = exporter->device().Export(memory);
  if (!CHECK_OK(handle)) return;
  for (size_t i = 0; i < handle->size(); ++i) {
    std::string changed = *handle;
    changed[i] = static_cast<char>(changed[i] ^ 0x20);
    CHECK_EQ(importer->device().Import(changed).status().code(), Code::kDataLoss);
    CHECK_EQ(importer->device().Import(handle->substr(0, i)).status().code(), Code::kDataLoss);
  }
  CHECK_EQ(importer->device().Import(*handle + "x").status().code(), Code::kDataLoss);
  // Whole, and of somewhere else.
  SharedHandle known = *ReadHandle(*handle);
  SharedHandle other = known;
  other.host ^= 1;
  CHECK_EQ(importer->device().Import(WriteHandle(other)).status().code(), Code::kFailedPrecondition);
  other = known;
  other.address += 4096;
  other.key[1] ^= std::byte{0x10};
  CHECK(!importer->device().Import(WriteHandle(other)).ok());
  other = known;
  other.bytes *= 4;
  CHECK(!importer->device().Import(WriteHandle(other)).ok());
  // The same place each time.
  const Result<Device::Imported> first = importer->device().Import(*handle);
  const Result<Device::Imported> second = importer->device().Import(*handle);
  if (!CHECK_OK(first) || !CHECK_OK(second)) return;
  CHECK(first->memory == second->memory);
  CHECK(first->bytes >= kMemoryBytes);
  importer->device().Release(first->memory);
  importer->device().Release(second->memory);
  exporter->device().FreeShared(memory);
}

// In one process CUDA opens no handle of its own: what is there is found by its address, and nothing else.
TEST(ipc_handles_within_a_process) {
  FakeCudaDevice one(1, 1, 0), two(2, 1, 0);
  one.api().SetProcess(77);
  two.api().SetProcess(77);
  std::byte* const memory = one.device().AllocateShared(kMemoryBytes);
  const std::string handle = *one.device().Export(memory);
  for (FakeCudaDevice* device : {&one, &two}) {
    const Result<Device::Imported> imported = device->device().Import(handle);
    if (CHECK_OK(imported)) CHECK(imported->memory == memory);
  }
  SharedHandle other = *ReadHandle(handle);
  other.address += 256;
  CHECK_EQ(two.device().Import(WriteHandle(other)).status().code(), Code::kDataLoss);
  other = *ReadHandle(handle);
  other.bytes += 256;
  CHECK_EQ(two.device().Import(WriteHandle(other)).status().code(), Code::kDataLoss);
  one.device().FreeShared(memory);
}

DEVICE_TEST(ipc_descriptors) {
  Exporter exporter(kind);
  CHECK(!exporter.offer.empty());
  const std::shared_ptr<TestedDevice> device = MakeDevice(kind, 2, 1, 0);
  SharedArenas arenas;
  DeviceIpc importer(1, &arenas);
  Device* const own = &device->device();
  CHECK(importer.Offer({&own, 1}, kMemoryBytes).empty());   // the option is off
  importer.SetLeastBytes(1000);
  const std::string mine = importer.Offer({&own, 1}, kMemoryBytes);
  std::vector<std::string> offers = {exporter.offer, mine};
  CHECK(importer.Open(offers, nullptr) == std::vector<uint8_t>({1, 1}));
  // Who has another value of the option.
  importer.SetLeastBytes(2000);
  std::vector<std::string> reasons;
  CHECK(importer.Open(offers, &reasons)[0] == 0);
  CHECK(reasons[0].find("device_ipc_bytes is 1000, and here 2000") != std::string::npos);
  importer.SetLeastBytes(1000);
  for (size_t i = 0; i < exporter.offer.size(); ++i) {
    std::string changed = exporter.offer;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    CHECK(importer.Open({{changed, exporter.offer.substr(0, i)}}, nullptr) ==
          std::vector<uint8_t>({0, 0}));
  }
  device->faults.import = 1;
  const std::vector<std::string> again = {Exporter(kind).offer};
  CHECK(importer.Open(again, nullptr) == std::vector<uint8_t>({0}));

  // Descriptors of memory that is not there.
  CHECK(importer.Open(offers, nullptr)[0] == 1);
  IpcDescriptor descriptor{1, 0, 0, true, false, 100, {{0, 100}}};
  CHECK_OK(importer.Reach(own, descriptor));
  descriptor.pieces[0].offset = kMemoryBytes;
  descriptor.pieces[0].bytes = kMemoryBytes;
  CHECK_EQ(importer.Reach(own, descriptor).status().code(), Code::kDataLoss);
  descriptor.pieces[0] = {0, 100};
  descriptor.memory = 1;
  CHECK_EQ(importer.Reach(own, descriptor).status().code(), Code::kDataLoss);
  descriptor.memory = -1;
  CHECK_EQ(importer.Reach(own, descriptor).status().code(), Code::kDataLoss);
  descriptor.memory = 0;
  descriptor.exporter = 5;
  CHECK_EQ(importer.Reach(own, descriptor).status().code(), Code::kUnavailable);
  importer.Forget({});
  arenas.Forget({});
}

// The rows of who can import from whom may be short, or of no use.
TEST(ipc_agree) {
  SharedArenas arenas;
  DeviceIpc ipc(1, &arenas);
  CHECK(!ipc.ExportsTo(0));
  ipc.Agree(std::vector<std::vector<uint8_t>>{{0, 1}, {}, {1}, {1, 1, 1}});
  CHECK(ipc.ExportsTo(0));
  CHECK(!ipc.ExportsTo(1));
  CHECK(!ipc.ExportsTo(2));
  CHECK(ipc.ExportsTo(3));
  CHECK(!ipc.ExportsTo(-1));
  CHECK(!ipc.ExportsTo(4));
  ipc.Lose(3);
  CHECK(!ipc.ExportsTo(3));
}

}  // namespace
}  // namespace jaxccomp
