// What loans are made of: blocks of shared memory, tickets, handles and offers, and what becomes of them
// when their bytes change on the way.
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "device/shared_handle.h"
#include "fake_cuda.h"
#include "fake_device.h"
#include "runtime/loan_ticket.h"
#include "runtime/loans.h"
#include "runtime/shared_arena.h"

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

LoanTicket Ticket() {
  LoanTicket ticket{7, 2, 1, false, true, 0, {}};
  ticket.pieces = {{0, 100, 5}, {112, 0, 6}, {1024, 77, 7}};
  ticket.payload_bytes = PayloadBytes(ticket.pieces, false, true);
  return ticket;
}

TEST(loan_tickets_come_as_they_went) {
  const LoanTicket sent = Ticket();
  const Result<LoanTicket> got = ReadTicket(BytesOf(WriteTicket(sent)));
  if (!CHECK_OK(got)) return;
  CHECK_EQ(got->number, sent.number);
  CHECK_EQ(got->lender, sent.lender);
  CHECK_EQ(got->memory, sent.memory);
  CHECK(got->referenced && !got->packed);
  CHECK_EQ(got->payload_bytes, 3 * 12 + 177);
  CHECK_EQ(got->pieces.size(), 3u);
  CHECK_EQ(got->pieces[2].offset, 1024);
  CHECK_EQ(got->pieces[2].ref_checksum, 7u);
}

TEST(loan_tickets_that_changed_are_refused) {
  const std::string sent = WriteTicket(Ticket());
  for (size_t i = 0; i < sent.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = sent;
      changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
      CHECK_EQ(ReadTicket(BytesOf(changed)).status().code(), Code::kDataLoss);
    }
    CHECK_EQ(ReadTicket(BytesOf(sent.substr(0, i))).status().code(), Code::kDataLoss);
  }
  // With the right checksum, too.
  const auto refused = [](auto change) {
    LoanTicket ticket = Ticket();
    change(&ticket);
    CHECK_EQ(ReadTicket(BytesOf(WriteTicket(ticket))).status().code(), Code::kDataLoss);
  };
  refused([](LoanTicket* t) { t->pieces[0].bytes = -1; });
  refused([](LoanTicket* t) { t->pieces[0].offset = -256; });
  refused([](LoanTicket* t) { t->pieces[1].bytes = INT64_MAX; });
  refused([](LoanTicket* t) { t->payload_bytes += 1; });
  refused([](LoanTicket* t) { t->pieces.clear(); });
  refused([](LoanTicket* t) { t->packed = true; });
  refused([](LoanTicket* t) { t->pieces.resize(LoanTicket::kMostPieces + 1); });
}

// Of another process, in which the device has memory of its own.
struct Lender {
  explicit Lender(DeviceKind kind) : device(MakeDevice(kind, 1, 1, 0)), loans(0, &arenas) {
    loans.SetLeastBytes(1000);
    Device* const own = &device->device();
    offer = loans.Offer({&own, 1}, kMemoryBytes);
  }
  ~Lender() {
    loans.Forget({});
    arenas.Forget({});
  }
  std::shared_ptr<TestedDevice> device;
  SharedArenas arenas;
  Loans loans;
  std::string offer;
};

DEVICE_TEST(loan_handles_that_changed_are_refused) {
  const std::shared_ptr<TestedDevice> lender = MakeDevice(kind, 1, 1, 0);
  const std::shared_ptr<TestedDevice> borrower = MakeDevice(kind, 2, 1, 0);
  std::byte* const memory = lender->device().AllocateShared(kMemoryBytes);
  const Result<std::string> handle = lender->device().Export(memory);
  if (!CHECK_OK(handle)) return;
  for (size_t i = 0; i < handle->size(); ++i) {
    std::string changed = *handle;
    changed[i] = static_cast<char>(changed[i] ^ 0x20);
    CHECK_EQ(borrower->device().Import(changed).status().code(), Code::kDataLoss);
    CHECK_EQ(borrower->device().Import(handle->substr(0, i)).status().code(), Code::kDataLoss);
  }
  CHECK_EQ(borrower->device().Import(*handle + "x").status().code(), Code::kDataLoss);
  // Whole, and of somewhere else.
  SharedHandle known = *ReadHandle(*handle);
  SharedHandle other = known;
  other.host ^= 1;
  CHECK_EQ(borrower->device().Import(WriteHandle(other)).status().code(), Code::kFailedPrecondition);
  other = known;
  other.address += 4096;
  other.key[1] ^= std::byte{0x10};
  CHECK(!borrower->device().Import(WriteHandle(other)).ok());
  other = known;
  other.bytes *= 4;
  CHECK(!borrower->device().Import(WriteHandle(other)).ok());
  // The same place each time.
  const Result<Device::Imported> first = borrower->device().Import(*handle);
  const Result<Device::Imported> second = borrower->device().Import(*handle);
  if (!CHECK_OK(first) || !CHECK_OK(second)) return;
  CHECK(first->memory == second->memory);
  CHECK(first->bytes >= kMemoryBytes);
  borrower->device().Release(first->memory);
  borrower->device().Release(second->memory);
  lender->device().FreeShared(memory);
}

// In one process CUDA opens no handle of its own: what is there is found by its address, and nothing else.
TEST(loan_handles_within_a_process) {
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

DEVICE_TEST(loan_offers) {
  Lender lender(kind);
  CHECK(!lender.offer.empty());
  const std::shared_ptr<TestedDevice> device = MakeDevice(kind, 2, 1, 0);
  SharedArenas arenas;
  Loans borrower(1, &arenas);
  Device* const own = &device->device();
  CHECK(borrower.Offer({&own, 1}, kMemoryBytes).empty());   // the option is off
  borrower.SetLeastBytes(1000);
  const std::string mine = borrower.Offer({&own, 1}, kMemoryBytes);
  std::vector<std::string> offers = {lender.offer, mine};
  CHECK(borrower.Open(offers, nullptr) == std::vector<uint8_t>({1, 1}));
  // Who has another value of the option.
  borrower.SetLeastBytes(2000);
  std::vector<std::string> reasons;
  CHECK(borrower.Open(offers, &reasons)[0] == 0);
  CHECK(reasons[0].find("device_ipc_bytes is 1000, and here 2000") != std::string::npos);
  borrower.SetLeastBytes(1000);
  for (size_t i = 0; i < lender.offer.size(); ++i) {
    std::string changed = lender.offer;
    changed[i] = static_cast<char>(changed[i] ^ 4);
    CHECK(borrower.Open({{changed, lender.offer.substr(0, i)}}, nullptr) ==
          std::vector<uint8_t>({0, 0}));
  }
  device->faults.import = 1;
  const std::vector<std::string> again = {Lender(kind).offer};
  CHECK(borrower.Open(again, nullptr) == std::vector<uint8_t>({0}));

  // Tickets of memory that is not there.
  CHECK(borrower.Open(offers, nullptr)[0] == 1);
  LoanTicket ticket{1, 0, 0, true, false, 100, {{0, 100}}};
  CHECK_OK(borrower.Reach(own, ticket));
  ticket.pieces[0].offset = kMemoryBytes;
  ticket.pieces[0].bytes = kMemoryBytes;
  CHECK_EQ(borrower.Reach(own, ticket).status().code(), Code::kDataLoss);
  ticket.pieces[0] = {0, 100};
  ticket.memory = 1;
  CHECK_EQ(borrower.Reach(own, ticket).status().code(), Code::kDataLoss);
  ticket.memory = -1;
  CHECK_EQ(borrower.Reach(own, ticket).status().code(), Code::kDataLoss);
  ticket.memory = 0;
  ticket.lender = 5;
  CHECK_EQ(borrower.Reach(own, ticket).status().code(), Code::kUnavailable);
  borrower.Forget({});
  arenas.Forget({});
}

// The rows of who can borrow from whom may be short, or of no use.
TEST(loans_agree) {
  SharedArenas arenas;
  Loans loans(1, &arenas);
  CHECK(!loans.LendsTo(0));
  loans.Agree(std::vector<std::vector<uint8_t>>{{0, 1}, {}, {1}, {1, 1, 1}});
  CHECK(loans.LendsTo(0));
  CHECK(!loans.LendsTo(1));
  CHECK(!loans.LendsTo(2));
  CHECK(loans.LendsTo(3));
  CHECK(!loans.LendsTo(-1));
  CHECK(!loans.LendsTo(4));
  loans.Lose(3);
  CHECK(!loans.LendsTo(3));
}

}  // namespace
}  // namespace jaxccomp
