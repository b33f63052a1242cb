// Checks of MpiTransport between processes: a shared library that a Python script loads on every rank after mpi4py,
// which initialises MPI:
//
//   comm = MPI.COMM_WORLD.Dup(); comm.Set_errhandler(MPI.ERRORS_RETURN)
//   lib = ctypes.CDLL("libtransport_test.so")
//   failed = lib.JaxccompCheckMpiTransport(c_uint64(MPI._handleof(comm)),
//                                          c_uint64(MPI._handleof(MPI.BYTE)),
//                                          c_int64(unit_bytes), c_uint32(payload_tags),
//                                          c_int64(credit_bytes), c_int64(small_messages), c_int(full))
//
// Every rank returns the number of its failed checks.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "patience.h"
#include "transport/mpi/mpi_transport.h"
#include "transport_cases.h"

namespace jaxccomp {
namespace {

// Among messages that complete together, only the truncated message is reported as failed.
void CheckTestSome(MpiHandle comm, MpiHandle byte_type) {
  const Result<const MpiLibrary*> mpi = MpiLibrary::Load();
  if (!CHECK_OK(mpi)) return;
  // Around a ring: Open MPI does not report truncation of a message from a rank to itself.
  int rank = 0, ranks = 0;
  CHECK_EQ((*mpi)->CommRank(comm, &rank), 0);
  CHECK_EQ((*mpi)->CommSize(comm, &ranks), 0);
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  constexpr int kMessages = 3, kShort = 1;
  const char sent[8] = "message";
  char received[kMessages][8] = {};
  MpiHandle sends[kMessages] = {}, receives[kMessages] = {};
  for (int i = 0; i < kMessages; ++i) {
    const int room = i == kShort ? 4 : 8;
    CHECK_EQ((*mpi)->Irecv(received[i], room, byte_type, previous, i, comm, &receives[i]), 0);
  }
  for (int i = 0; i < kMessages; ++i) {
    CHECK_EQ((*mpi)->Isend(sent, 8, byte_type, next, i, comm, &sends[i]), 0);
  }
  std::map<int, int> errors;
  for (const std::span<MpiHandle> all : {std::span(receives), std::span(sends)}) {
    std::vector<MpiHandle> left(all.begin(), all.end());
    std::vector<int> numbers = {0, 1, 2};
    // The other rank may not have started yet.
    const testing::Stopwatch watch;
    while (!left.empty() && watch.Seconds() < 30) {
      MpiLibrary::Tested completed[kMessages];
      const int done = (*mpi)->TestSome(left, completed);
      std::sort(completed, completed + done, [](auto& x, auto& y) { return x.index > y.index; });
      for (int i = 0; i < done; ++i) {
        const int at = completed[i].index;
        if (all.data() == receives) errors[numbers[at]] = completed[i].error;
        left.erase(left.begin() + at);
        numbers.erase(numbers.begin() + at);
      }
    }
    CHECK(left.empty());
  }
  CHECK_EQ(std::ssize(errors), kMessages);
  for (const auto& [number, error] : errors) CHECK_EQ(error != 0, number == kShort);
  for (int i : {0, 2}) CHECK_EQ(std::string(received[i]), sent);
}

}  // namespace
}  // namespace jaxccomp

// `unit_bytes` and `payload_tags` are members of MpiConfig. `credit_bytes`: treats each process as on its own host,
// with this credit; -1: all on one host. `small_messages`: credit of small messages, with 4 KiB for each. `full`: also
// sends payloads of 64 MiB. No message is in flight on `comm` when all ranks have returned.
extern "C" int JaxccompCheckMpiTransport(uint64_t comm, uint64_t byte_type, int64_t unit_bytes,
                                         uint32_t payload_tags, int64_t credit_bytes,
                                         int64_t small_messages, int full) {
  using namespace jaxccomp;
  constexpr int64_t kKiB = 1 << 10;
  const int64_t failed_before = testing::FailedChecks().load();
  auto failed = [&] { return static_cast<int>(testing::FailedChecks().load() - failed_before); };
  CheckTestSome(comm, byte_type);
  Node node;
  const Credit::Amount small_credit{.bytes = small_messages * 4 * kKiB, .messages = small_messages};
  auto created = MpiTransport::Create(
      {.comm = comm,
       .byte_type = byte_type,
       .unit_bytes = unit_bytes,
       .remote_unit_bytes = unit_bytes,
       .all_remote = credit_bytes >= 0,
       .payload_tags = payload_tags,
       .credit_bytes = credit_bytes,
       .small_credit = small_credit},
      &node);
  if (!CHECK_OK(created)) return failed();
  MpiTransport* transport = created->get();
  node.transport = transport;
  node.self = transport->process();
  node.ranks = transport->process_count();
  constexpr int64_t kEager = MpiTransport::kEagerBytes;
  const std::vector<int64_t> sizes = {0,         1,         kKiB,          kEager - 1, kEager,
                                      kEager + 1, 16 * kKiB, 16 * kKiB + 1, 64 * kKiB,
                                      kKiB * kKiB};
  CheckMisuse(node);
  CheckExchange(&node, sizes, 3, 1, 1);
  CheckExchange(&node, sizes, 2, 4, 1);
  CheckExchange(&node, sizes, 2, 1, 3);
  CheckExchange(&node, sizes, 2, 5, 3);
  CheckExchange(&node, {0, 8, 200, 20 * kKiB}, 300, 1, 1);
  // Credit returns in portions, so a small part of it may be missing.
  constexpr int kPulled = 40;
  const int64_t whole = credit_bytes < 0 ? 0 : credit_bytes / (kEager + 1);
  CheckLatePulls(&node, kPulled, static_cast<int>(std::min<int64_t>(whole, kPulled)));
  CheckBacklog(&node, small_credit);
  CheckBacklog(&node, small_credit);
  CheckExchange(&node, {0, 8, 200, 20 * kKiB}, 50, 1, 1);
  if (full) CheckExchange(&node, {64 * kKiB * kKiB}, 1, 1, 1);
  transport->Close();
  Waiter late;
  transport->Send(0, Header{}, {}, &late);
  CHECK(late.status.code() == Code::kUnavailable);
  CHECK(!transport->Poll());
  return failed();
}

// Checks the order of payloads that wait for the window of another host. Collective; no message is in flight on `comm`
// when all ranks have returned.
extern "C" int JaxccompCheckTurns(uint64_t comm, uint64_t byte_type) {
  using namespace jaxccomp;
  const int64_t failed_before = testing::FailedChecks().load();
  Node node;
  auto created = MpiTransport::Create(
      {.comm = comm, .byte_type = byte_type, .all_remote = true, .credit_bytes = 64 << 20, .remote_window_bytes = 2 << 20}, &node);
  if (!CHECK_OK(created)) return 1;
  node.transport = created->get();
  node.self = (*created)->process();
  node.ranks = (*created)->process_count();
  CheckTurns(&node);
  // No rank closes its transport while another one still sends.
  CheckExchange(&node, {0, 8}, 1, 1, 1);
  (*created)->Close();
  return static_cast<int>(testing::FailedChecks().load() - failed_before);
}

// Freezes the transport with a payload in flight in each direction, since MPI cannot cancel these payloads. Checks that
// each started transfer completes exactly once, and that all other processes are reported as lost. Collective; `comm`
// is unusable afterwards.
extern "C" int JaxccompCheckFreeze(uint64_t comm, uint64_t byte_type) {
  using namespace jaxccomp;
  struct Frozen final : Receiver {
    void OnMessage(const Header&, std::span<const std::byte>, Announced announced) override {
      transport->Pull(announced, {&into, 1}, &pulled);
    }
    void OnPeerFailed(int process, const Status& why) override {
      CHECK_EQ(why.message(), "frozen");
      CHECK(lost.insert(process).second);
    }
    MpiTransport* transport = nullptr;
    Piece into;
    Waiter pulled;
    std::set<int> lost;
  } node;
  static Bytes incoming(8 << 20), outgoing(8 << 20);   // static: MPI may use them until it is finalised
  const int64_t failed_before = testing::FailedChecks().load();
  auto created = MpiTransport::Create({.comm = comm, .byte_type = byte_type}, &node);
  if (!CHECK_OK(created)) return 1;
  MpiTransport* const transport = node.transport = created->get();
  const int processes = transport->process_count();
  node.into = {incoming.data(), std::ssize(incoming)};
  const Piece piece{outgoing.data(), std::ssize(outgoing)};
  Header header;
  header.payload_bytes = piece.bytes;
  Waiter sent;
  transport->Send((transport->process() + 1) % processes, header, {&piece, 1}, &sent);
  const testing::Stopwatch watch;
  while (!transport->HasTransfers() && watch.Seconds() < 30) {
    transport->Poll();
  }
  CHECK(transport->HasTransfers());
  const Status why(Code::kUnavailable, "frozen");
  for (int times : {1, 2}) {
    transport->Quiesce(why);
    CHECK_EQ(sent.calls, 1);
    CHECK(node.pulled.calls <= 1);
    CHECK_EQ(std::ssize(node.lost), processes - 1);
    CHECK(!node.lost.contains(transport->process()));
    CHECK(!transport->Poll());
    Waiter later;
    transport->Send(0, Header{}, {}, &later);
    CHECK(later.status.code() == Code::kUnavailable);
    static_cast<void>(times);
  }
  // Shutdown does not wait for these transfers either.
  transport->ShutdownBarrier(std::chrono::seconds(60));
  return static_cast<int>(testing::FailedChecks().load() - failed_before);
}

// Half a round trip between ranks 0 and 1 in microseconds, mean of `rounds`; -1 on failure.
extern "C" double JaxccompMpiPingPong(uint64_t comm, uint64_t byte_type, int64_t bytes,
                                      int rounds) {
  using namespace jaxccomp;
  struct Player final : Receiver {
    void OnMessage(const Header&, std::span<const std::byte> payload,
                   Announced announced) override {
      if (announced.process >= 0) {
        const Piece into{buffer.data(), static_cast<int64_t>(buffer.size())};
        transport->Pull(announced, {&into, 1}, &pulled);
      } else {
        if (!payload.empty()) std::memcpy(buffer.data(), payload.data(), payload.size());
        ++pulled.calls;
      }
    }
    void OnPeerFailed(int, const Status&) override { lost = true; }
    MpiTransport* transport = nullptr;
    Bytes buffer;
    Waiter pulled;
    bool lost = false;
  } player;
  player.buffer.resize(static_cast<size_t>(bytes));
  auto created = MpiTransport::Create({.comm = comm, .byte_type = byte_type}, &player);
  if (!created.ok()) return -1;
  MpiTransport* transport = player.transport = created->get();
  if (transport->process() > 1) return 0;
  Bytes outgoing(static_cast<size_t>(bytes));
  const Piece piece{outgoing.data(), bytes};
  Header header;
  header.payload_bytes = bytes;
  Waiter sent;
  const bool first = transport->process() == 0;
  const int peer = first ? 1 : 0;
  const int warm_rounds = rounds / 10 + 1;
  auto start = std::chrono::steady_clock::now();
  for (int r = 0; r < warm_rounds + rounds && !player.lost; ++r) {
    if (r == warm_rounds) start = std::chrono::steady_clock::now();
    if (first) transport->Send(peer, header, {&piece, 1}, &sent);
    while (player.pulled.calls <= r && !player.lost) transport->Poll();
    if (!first) transport->Send(peer, header, {&piece, 1}, &sent);
  }
  const std::chrono::duration<double, std::micro> taken =
      std::chrono::steady_clock::now() - start;
  while (sent.calls < warm_rounds + rounds && !player.lost) transport->Poll();
  return player.lost ? -1 : taken.count() / (2 * rounds);
}

// Checks Transport::Cancel and Discard on sends and receives of 8 MiB. `on_request`: without credit and with one tag,
// so that each payload waits until it is requested. Otherwise MPI starts each at once. Collective; no message is in
// flight on `comm` when all ranks have returned.
extern "C" int JaxccompCheckCancel(uint64_t comm, uint64_t byte_type, int all_remote, int on_request) {
  using namespace jaxccomp;
  struct Neighbour final : Receiver {
    void OnMessage(const Header&, std::span<const std::byte>, Announced each) override { announced.push_back(each); }
    void OnPeerFailed(int, const Status& why) override { CHECK_EQ(why.message(), "nobody is lost"); }
    std::vector<Announced> announced;
  } node;
  const int64_t failed_before = testing::FailedChecks().load();
  const auto failed = [&] { return static_cast<int>(testing::FailedChecks().load() - failed_before); };
  auto created = MpiTransport::Create({.comm = comm,
                                       .byte_type = byte_type,
                                       .all_remote = all_remote != 0,
                                       .payload_tags = on_request ? 1U : 8192U,
                                       .credit_bytes = on_request ? 0 : -1},
                                      &node);
  if (!CHECK_OK(created)) return 1;
  MpiTransport* const transport = created->get();
  const int self = transport->process(), ranks = transport->process_count();
  const int next = (self + 1) % ranks, previous = (self + ranks - 1) % ranks;
  const auto poll_until = [&](const auto& ready) {
    const testing::Stopwatch watch;
    while (!ready() && watch.Seconds() < 30) transport->Poll();
    CHECK(ready());
  };
  // A barrier by MPI: the transport does not progress meanwhile.
  const auto barrier = [&] {
    const Result<const MpiLibrary*> mpi = MpiLibrary::Load();
    MpiHandle request = 0;
    CHECK_EQ((*mpi)->Ibarrier(comm, &request), 0);
    for (int over = 0; over == 0;) CHECK_EQ((*mpi)->Test(&request, &over), 0);
  };
  const Status why(Code::kAborted, "its operation has failed");
  constexpr int64_t kBytes = 8 << 20;
  struct Send { Bytes payload; Waiter sent; };
  struct Pull { Bytes into = Bytes(kBytes, std::byte{5}); Waiter pulled; };
  const auto untouched = [](const Pull& pull) {
    return std::ranges::all_of(pull.into, [](std::byte each) { return each == std::byte{5}; });
  };
  // Sends, and waits until all ranks have received `count` announcements.
  std::deque<Send> sends;
  const auto send = [&](int count) {
    node.announced.clear();
    sends.clear();
    for (int number = 0; number < count; ++number) {
      Send& each = sends.emplace_back();
      each.payload = Pattern(self, next, number, kBytes);
      const Piece piece{each.payload.data(), kBytes};
      Header header;
      header.payload_bytes = kBytes;
      transport->Send(next, header, {&piece, 1}, &each.sent);
    }
    poll_until([&] { return std::ssize(node.announced) == count; });
    barrier();
  };
  const auto pull = [&](int number, Pull* into) {
    const Piece place{into->into.data(), kBytes};
    transport->Pull(node.announced[static_cast<size_t>(number)], {&place, 1}, &into->pulled);
  };
  const auto cancel = [&](Send* each, bool force = false) {
    const CancelResult result = transport->Cancel(next, &each->sent, why, force);
    if (result == CancelResult::kDone) {
      CHECK_EQ(each->sent.calls, 1);
      CHECK(each->sent.status.code() == Code::kAborted);
      std::ranges::fill(each->payload, std::byte{66});   // no receiver may see this value
    }
    return result;
  };
  const auto settled = [&] {
    return !transport->HasTransfers() && std::ranges::all_of(sends, [](const Send& each) { return each.sent.calls == 1; });
  };

  if (!on_request) {
    {   // A send that MPI has started.
      send(1);
      CHECK(cancel(&sends[0]) == CancelResult::kPinned);
      CHECK(cancel(&sends[0], true) == CancelResult::kPinned);
      CHECK_EQ(sends[0].sent.calls, 0);
      barrier();
      Pull first;
      pull(0, &first);
      poll_until([&] { return first.pulled.calls == 1 && settled(); });
      CHECK_OK(first.pulled.status);
      CHECK(first.into == Pattern(previous, self, 0, kBytes));
      barrier();
    }
    send(1);
    transport->Discard(node.announced[0]);
    poll_until(settled);
    CHECK_OK(sends[0].sent.status);
    barrier();
    transport->Close();
    return failed();
  }

  {   // Cancelled before it is pulled.
    send(1);
    CHECK(cancel(&sends[0]) == CancelResult::kDone);
    Pull first;
    pull(0, &first);
    poll_until([&] { return first.pulled.calls == 1 && settled(); });
    CHECK(first.pulled.status.code() == Code::kAborted);
    CHECK(untouched(first));
    barrier();
  }
  {   // Cancelled after its receive has been posted. The next payload has the same tag.
    send(2);
    Pull first, second;
    pull(0, &first);
    pull(1, &second);
    CHECK(cancel(&sends[0]) == CancelResult::kDone);
    poll_until([&] { return first.pulled.calls == 1 && second.pulled.calls == 1 && settled(); });
    CHECK(first.pulled.status.code() == Code::kAborted);
    CHECK(untouched(first));
    CHECK_OK(second.pulled.status);
    CHECK(second.into == Pattern(previous, self, 1, kBytes));
    barrier();
  }
  {   // Discarded at the receiver; another one is cancelled by its sender at the same time.
    send(3);
    transport->Discard(node.announced[0]);
    transport->Discard(node.announced[1]);
    CHECK(cancel(&sends[1]) == CancelResult::kDone);
    Pull third;
    pull(2, &third);
    poll_until([&] { return third.pulled.calls == 1 && settled(); });
    CHECK_OK(sends[0].sent.status);
    CHECK_OK(third.pulled.status);
    CHECK(third.into == Pattern(previous, self, 2, kBytes));
    barrier();
  }
  {   // A receive that has not matched.
    send(1);
    Pull first;
    pull(0, &first);
    CHECK(transport->Cancel(previous, &first.pulled, why, false) == CancelResult::kDone);
    CHECK_EQ(first.pulled.calls, 1);
    CHECK(first.pulled.status.code() == Code::kAborted);
    barrier();   // no rank sends before this
    poll_until(settled);
    CHECK(untouched(first));
    CHECK(transport->Cancel(previous, &first.pulled, why, true) == CancelResult::kDone);   // nothing is in flight
    CHECK_EQ(first.pulled.calls, 1);
    barrier();
  }
  transport->Close();
  return failed();
}

// A control message of the transport without a matching operation: the receiver marks the sender as lost, with the
// reason. Collective; no message is in flight on `comm` when all ranks have returned.
extern "C" int JaxccompCheckStrayMessage(uint64_t comm, uint64_t byte_type, int type) {
  using namespace jaxccomp;
  struct Victim final : Receiver {
    void OnMessage(const Header&, std::span<const std::byte>, Announced) override { CHECK(!"delivered"); }
    void OnPeerFailed(int process, const Status& why) override {
      lost.insert(process);
      reason = why;
    }
    std::set<int> lost;
    Status reason;
  } node;
  const int64_t failed_before = testing::FailedChecks().load();
  auto created = MpiTransport::Create({.comm = comm, .byte_type = byte_type}, &node);
  if (!CHECK_OK(created)) return 1;
  MpiTransport* const transport = created->get();
  const int ranks = transport->process_count(), next = (transport->process() + 1) % ranks;
  Header stray;
  stray.type = static_cast<MessageType>(type);
  stray.payload_tag = 1000;
  stray.total_bytes = 1 << 20;
  Waiter sent;
  transport->Send(next, stray, {}, &sent);
  const testing::Stopwatch watch;
  while (node.lost.empty() && watch.Seconds() < 30) transport->Poll();
  CHECK(node.lost == std::set<int>({(transport->process() + ranks - 1) % ranks}));
  CHECK(node.reason.code() == Code::kDataLoss);
  transport->Close();
  return static_cast<int>(testing::FailedChecks().load() - failed_before);
}
