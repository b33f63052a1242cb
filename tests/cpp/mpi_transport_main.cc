// Checks of MpiTransport between processes. Built as a shared library that a Python script
// loads on every rank after mpi4py, which initialises MPI:
//
//   comm = MPI.COMM_WORLD.Dup(); comm.Set_errhandler(MPI.ERRORS_RETURN)
//   lib = ctypes.CDLL("libtransport_test.so")
//   failed = lib.JaxccompCheckMpiTransport(c_uint64(MPI._handleof(comm)),
//                                          c_uint64(MPI._handleof(MPI.BYTE)),
//                                          c_int64(unit_bytes), c_uint32(payload_tags),
//                                          c_int64(credit_bytes), c_int64(small_messages), c_int(full))
//
// Every rank returns how many of its checks failed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/pieces.h"

namespace jaxccomp {
namespace {

using Bytes = std::vector<std::byte>;

struct Waiter final : Completion {
  void Done(Status s) override {
    ++calls;
    status = std::move(s);
  }
  int calls = 0;
  Status status;
};

// What payload `index` from one process to another holds, so that any mix-up shows.
Bytes Pattern(int source, int destination, uint32_t index, int64_t bytes) {
  Bytes out(static_cast<size_t>(bytes));
  uint64_t x = 0x9e3779b97f4a7c15u * (1 + index + 1000003u * static_cast<uint64_t>(source) +
                                      7919u * static_cast<uint64_t>(destination));
  for (size_t i = 0; i < out.size(); i += 8) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    std::memcpy(out.data() + i, &x, std::min<size_t>(8, out.size() - i));
  }
  return out;
}

// `data` cut into `count` pieces of uneven sizes, one of them empty when there are three or more.
std::vector<Piece> Cut(Bytes* data, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> ends;
  const auto total = static_cast<int64_t>(data->size());
  for (int i = 0; i + 1 < count; ++i) ends.push_back(total ? random() % total : 0);
  if (count >= 3) ends[1] = ends[0];
  std::sort(ends.begin(), ends.end());
  ends.push_back(total);
  std::vector<Piece> pieces;
  int64_t begin = 0;
  for (int64_t end : ends) {
    pieces.push_back({data->data() + begin, end - begin});
    begin = end;
  }
  return pieces;
}

struct Node final : Receiver {
  struct Arrival {
    Header header;
    Bytes payload;
    Announced announced;
    std::unique_ptr<Waiter> pulled;
  };

  void OnMessage(const Header& header, std::span<const std::byte> payload,
                 Announced announced) override {
    auto arrival = std::make_unique<Arrival>();
    arrival->header = header;
    arrival->payload.assign(payload.begin(), payload.end());
    arrival->announced = announced;
    const bool small = header.payload_bytes <= MpiTransport::kEagerBytes;
    if (announced.process < 0) {
      CHECK(small);   // and beyond its credit a small one is announced
      CHECK_EQ(payload.size(), header.payload_bytes);
      if (header.iteration == kKept) transport->Keep(header.source_process, header.payload_bytes);
    }
    // As long as it has no place.
    CHECK_EQ(transport->PullsIntoDevices(announced), announced.process >= 0 && !small);
    auto& arrivals = phases[header.sequence];
    arrivals.push_back(std::move(arrival));
    if (header.sequence == phase) PullAtOnce(arrivals.back().get());
  }
  void OnPeerLost(int process, const Status& why) override {
    CHECK(false);
    std::fprintf(stderr, "lost process %d: %s\n", process, why.message().c_str());
  }
  void Pull(Arrival* arrival, int pieces) {
    arrival->payload.resize(static_cast<size_t>(arrival->header.payload_bytes));
    arrival->pulled = std::make_unique<Waiter>();
    const auto into = Cut(&arrival->payload, pieces, arrival->header.tag + 77);
    transport->Pull(arrival->announced, into, arrival->pulled.get());
  }

  void PullAtOnce(Arrival* arrival) {
    if (pull_pieces > 0 && arrival->announced.process >= 0) Pull(arrival, pull_pieces);
  }
  // Other ranks may be a phase ahead: what they sent has waited.
  std::vector<std::unique_ptr<Arrival>>& StartPhase(int pieces) {
    phases.erase(phase++);
    pull_pieces = pieces;
    for (auto& arrival : phases[phase]) PullAtOnce(arrival.get());
    return phases[phase];
  }

  MpiTransport* transport = nullptr;
  std::map<uint64_t, std::vector<std::unique_ptr<Arrival>>> phases;
  uint64_t phase = 0;
  int pull_pieces = 1;  // 0: not at once
  // Of a message that takes up credit until it is released. Other ranks may be a phase ahead.
  static constexpr uint64_t kKept = 1;
};

template <typename F>
bool PollUntil(MpiTransport* transport, F&& ready) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!ready()) {
    transport->Poll();
    if (std::chrono::steady_clock::now() > deadline) return CHECK(!"timed out");
  }
  return true;
}

bool AllPulled(const std::vector<std::unique_ptr<Node::Arrival>>& arrivals) {
  for (const auto& a : arrivals) {
    if (a->announced.process >= 0 && (!a->pulled || a->pulled->calls == 0)) return false;
  }
  return true;
}

// Everyone sends `repeats` messages of each size to everyone, itself included, all in flight.
void CheckExchange(MpiTransport* transport, Node* node, const std::vector<int64_t>& sizes,
                   int repeats, int send_pieces, int pull_pieces) {
  const int ranks = transport->process_count(), self = transport->process();
  const auto& arrivals = node->StartPhase(pull_pieces);
  std::deque<Bytes> payloads;
  std::deque<Waiter> sent;
  for (int r = 0; r < repeats; ++r) {
    for (size_t s = 0; s < sizes.size(); ++s) {
      for (int d = 0; d < ranks; ++d) {
        Header header;
        header.tag = static_cast<uint32_t>(r * sizes.size() + s);
        header.sequence = node->phase;
        header.destination = d;
        header.payload_bytes = sizes[s];
        payloads.push_back(Pattern(self, d, header.tag, sizes[s]));
        sent.emplace_back();
        transport->Send(d, header, Cut(&payloads.back(), send_pieces, header.tag), &sent.back());
      }
    }
  }
  const size_t expected = static_cast<size_t>(ranks * repeats) * sizes.size();
  PollUntil(transport, [&] {
    if (arrivals.size() < expected || !AllPulled(arrivals)) return false;
    for (const Waiter& w : sent) {
      if (w.calls == 0) return false;
    }
    return true;
  });
  CHECK_EQ(arrivals.size(), expected);
  std::map<int, uint32_t> next;  // messages of one source come in order
  for (const auto& a : arrivals) {
    CHECK_EQ(a->header.tag, next[a->header.source_process]++);
    CHECK_EQ(a->header.destination, self);
    CHECK(a->payload == Pattern(a->header.source_process, self, a->header.tag,
                                a->header.payload_bytes));
    if (a->pulled) {
      CHECK_OK(a->pulled->status);
      CHECK_EQ(a->pulled->calls, 1);
    }
  }
  for (const Waiter& w : sent) {
    CHECK_OK(w.status);
    CHECK_EQ(w.calls, 1);
  }
}

// Announced payloads that are pulled last first, or dropped. With more of them than there are
// MPI tags, some share a tag and must not be mixed up. As many as `early` of them come on credit.
void CheckLatePulls(MpiTransport* transport, Node* node, int count, int early) {
  const int ranks = transport->process_count(), self = transport->process();
  const int to = (self + 1) % ranks;
  const auto& arrivals = node->StartPhase(0);
  // Some are more than there is credit for.
  auto bytes_of = [](int i) -> int64_t {
    return i % 7 == 3 ? 100 << 10 : MpiTransport::kEagerBytes + 1;
  };
  std::vector<Bytes> payloads;
  std::deque<Waiter> sent;
  for (int i = 0; i < count; ++i) payloads.push_back(Pattern(self, to, i, bytes_of(i)));
  for (int i = 0; i < count; ++i) {
    Header header;
    header.sequence = node->phase;
    header.tag = static_cast<uint32_t>(i);
    header.lane = (count - i) / 3;
    header.payload_bytes = bytes_of(i);
    sent.emplace_back();
    const Piece piece{payloads[i].data(), bytes_of(i)};
    transport->Send(to, header, {&piece, 1}, &sent.back());
    transport->Poll();
  }
  int in_place_count = 0;
  PollUntil(transport, [&] {
    return arrivals.size() == static_cast<size_t>(count) &&
           std::ranges::count_if(arrivals, [&](const auto& a) {
             return !transport->InPlace(a->announced).empty();
           }) >= early;
  });
  for (int i = count - 1; i >= 0; --i) {
    Node::Arrival* arrival = arrivals[static_cast<size_t>(i)].get();
    const auto in_place = transport->InPlace(arrival->announced);
    if (!in_place.empty()) {
      ++in_place_count;
      CHECK(!transport->PullsIntoDevices(arrival->announced));
      arrival->payload.resize(static_cast<size_t>(bytes_of(i)));
      CopyPieces(in_place, Cut(&arrival->payload, 2, 5));
      CHECK(arrival->payload == Pattern(arrival->header.source_process, self,
                                        arrival->header.tag, bytes_of(i)));
    }
    if (i % 3 == 0) {
      transport->Discard(arrival->announced);
      arrival->announced = {};
    } else {
      node->Pull(arrival, 1 + i % 2);
    }
  }
  PollUntil(transport, [&] {
    if (!AllPulled(arrivals)) return false;
    for (const Waiter& w : sent) {
      if (w.calls == 0) return false;
    }
    return true;
  });
  CHECK_EQ(in_place_count, early);
  for (const auto& a : arrivals) {
    if (!a->pulled) continue;
    CHECK_OK(a->pulled->status);
    const auto index = static_cast<int>(a->header.tag);
    CHECK(a->payload == Pattern(a->header.source_process, self, a->header.tag, bytes_of(index)));
  }
  for (const Waiter& w : sent) CHECK_OK(w.status);
}

// Small messages that nobody takes. What comes along is bounded; the others wait at their sender, and
// yet each of them comes as soon as somebody wants it, the last one first.
void CheckBacklog(MpiTransport* transport, Node* node, Credit::Amount limit) {
  constexpr int kMessages = 600, kLanes = 5;
  constexpr uint64_t kGo = 1000000;   // added to the phase
  const int ranks = transport->process_count(), self = transport->process();
  const int to = (self + 1) % ranks, from = (self + ranks - 1) % ranks;
  const auto& arrivals = node->StartPhase(0);
  auto bytes_of = [](int i) -> int64_t { return i % 3 == 0 ? 0 : i % 3 == 1 ? 1024 : 3000; };
  auto lane_of = [](int i) { return kLanes - i % kLanes; };
  std::vector<Bytes> payloads;
  std::deque<Waiter> sent;
  int64_t at_once = 0;
  for (int i = 0; i < kMessages; ++i) payloads.push_back(Pattern(self, to, i, bytes_of(i)));
  for (int i = 0; i < kMessages; ++i) {
    Header header;
    header.sequence = node->phase;
    header.tag = static_cast<uint32_t>(i);
    header.iteration = Node::kKept;
    header.lane = lane_of(i);
    header.payload_bytes = bytes_of(i);
    sent.emplace_back();
    const Piece piece{payloads[i].data(), bytes_of(i)};
    transport->Send(to, header, {&piece, 1}, &sent.back());
    at_once += sent.back().calls;
    transport->Poll();
  }
  auto count_sent = [&] {
    return std::ranges::count_if(sent, [](const Waiter& w) { return w.calls > 0; });
  };
  std::vector<bool> sent_before;
  for (const Waiter& w : sent) sent_before.push_back(w.calls > 0);
  PollUntil(transport, [&] { return arrivals.size() == kMessages; });
  std::vector<Node::Arrival*> along, announced;
  int64_t along_bytes = 0;
  for (const auto& a : arrivals) {
    CHECK_EQ(a->header.type == MessageType::kData, true);
    (a->announced.process < 0 ? along : announced).push_back(a.get());
    if (a->announced.process < 0) along_bytes += a->header.payload_bytes;
  }
  CHECK(std::ssize(along) <= limit.messages);
  CHECK(along_bytes <= limit.bytes);
  // The last one of all, while everything else is kept.
  Node::Arrival* const last = arrivals.back().get();
  if (CHECK(last->announced.process >= 0)) {
    CHECK(transport->InPlace(last->announced).empty());
    node->Pull(last, 2);
    PollUntil(transport, [&] { return last->pulled->calls > 0; });
    CHECK(last->payload == Pattern(from, self, last->header.tag, last->header.payload_bytes));
  }
  // Credit that comes back sends others, whatever nobody wants, and those of the lowest lane first.
  for (Node::Arrival* a : along) transport->Release(from, a->header.payload_bytes);
  transport->Settle();
  // (Some of it may have been on its way here, and it comes back in bulk.)
  if (at_once > 0 && 2 * at_once >= limit.messages) {
    auto highest_lane = [&] {
      int highest = 0;
      for (int i = 0; i + 1 < kMessages; ++i) {
        if (!sent_before[i] && sent[i].calls > 0) highest = std::max(highest, lane_of(i));
      }
      return highest;
    };
    PollUntil(transport, [&] { return highest_lane() > 0; });
    const int highest = highest_lane();
    for (int i = 0; i < kMessages; ++i) {
      if (lane_of(i) < highest) CHECK_EQ(sent[i].calls, 1);
    }
  }
  // Until then nobody pulls what waits here.
  Header go;
  go.type = MessageType::kProbe;
  go.sequence = node->phase + kGo;
  Waiter gone;
  transport->Send(to, go, {}, &gone);
  PollUntil(transport, [&] { return !node->phases[node->phase + kGo].empty(); });
  // Some are dropped, and all come.
  for (int i = static_cast<int>(announced.size()) - 2; i >= 0; --i) {
    Node::Arrival* const a = announced[static_cast<size_t>(i)];
    if (i % 7 == 6) {
      transport->Discard(a->announced);
      a->announced = {};
    } else {
      node->Pull(a, 1 + i % 3);
    }
    if (i % 16 == 0) transport->Poll();
  }
  PollUntil(transport, [&] { return AllPulled(arrivals) && count_sent() == kMessages; });
  for (const Node::Arrival* a : announced) {
    if (!a->pulled) continue;
    CHECK_OK(a->pulled->status);
    CHECK_EQ(a->pulled->calls, 1);
    CHECK(a->payload == Pattern(from, self, a->header.tag, a->header.payload_bytes));
  }
  for (const Node::Arrival* a : along) {
    CHECK(a->payload == Pattern(from, self, a->header.tag, a->header.payload_bytes));
  }
  for (const Waiter& w : sent) {
    CHECK_OK(w.status);
    CHECK_EQ(w.calls, 1);
  }
}

// One message each way with every other process, of sizes that are cut and such as are not.
void CheckSwaps(MpiTransport* transport) {
  const int ranks = transport->process_count(), self = transport->process();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const std::vector<int64_t> sizes = {16 << 10, 128 << 10, 1 << 20, 1};
  for (int step = 0; step < ranks; ++step) {
    const int to = (self + step) % ranks, from = (self + ranks - step) % ranks;
    std::vector<Bytes> out, in;
    std::vector<Piece> sent, received;
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.push_back(Pattern(self, to, static_cast<uint32_t>(i), sizes[i]));
      in.emplace_back(static_cast<size_t>(sizes[i]));
      sent.push_back({out.back().data(), sizes[i]});
      received.push_back({in.back().data(), sizes[i]});
    }
    const auto told = transport->Exchange(to, sent, from, received, deadline);
    CHECK_OK(told.sent);
    CHECK_OK(told.received);
    for (size_t i = 0; i < sizes.size(); ++i) {
      CHECK(in[i] == Pattern(from, self, static_cast<uint32_t>(i), sizes[i]));
    }
  }
  // What nobody sends.
  static Bytes never(20 << 10), at_last(20 << 10);
  const Piece piece{never.data(), std::ssize(never)}, late{at_last.data(), std::ssize(at_last)};
  const auto soon = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  const auto told = transport->Exchange(-1, {}, self, {&piece, 1}, soon);
  CHECK_OK(told.sent);
  CHECK(told.received.code() == Code::kDeadlineExceeded);
  // Who waits is still there: sent to, so that nothing is left.
  CHECK_OK(transport->Exchange(self, {&late, 1}, -1, {}, deadline).sent);
}

void CheckMisuse(MpiTransport* transport) {
  Header header;
  header.payload_bytes = 5;
  Waiter wrong_size, no_such, unknown;
  transport->Send(0, header, {}, &wrong_size);
  CHECK(wrong_size.status.code() == Code::kInternal);
  header.payload_bytes = 0;
  transport->Send(transport->process_count(), header, {}, &no_such);
  CHECK(no_such.status.code() == Code::kInternal);
  transport->Pull({.process = 0, .id = 12345}, {}, &unknown);
  CHECK(unknown.status.code() == Code::kInternal);
  transport->Discard({.process = 0, .id = 12345});
  CHECK(transport->InPlace({.process = 0, .id = 12345}).empty());
}

// Of messages that come together, the one that does not fit its memory is the one that has failed.
void CheckTestSome(MpiHandle comm, MpiHandle byte_type) {
  const Result<const MpiLibrary*> mpi = MpiLibrary::Load();
  if (!CHECK_OK(mpi)) return;
  // Around a ring: Open MPI does not say of a message to oneself that it was cut.
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
    for (int polls = 0; !left.empty() && polls < 1'000'000; ++polls) {
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

// `unit_bytes` and `payload_tags` are MpiConfig's. `credit_bytes`: as if each process were on a
// host of its own, with so much credit; -1: as on one host. `small_messages`: the credit of small ones,
// and 4 KiB for each of them. `full`: also payloads of 64 MiB.
// Nothing is under way on `comm` when all ranks have returned.
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
  constexpr int64_t kEager = MpiTransport::kEagerBytes;
  const std::vector<int64_t> sizes = {0,         1,         kKiB,          kEager - 1, kEager,
                                      kEager + 1, 16 * kKiB, 16 * kKiB + 1, 64 * kKiB,
                                      kKiB * kKiB};
  CheckMisuse(transport);
  CheckSwaps(transport);
  CheckExchange(transport, &node, sizes, 3, 1, 1);
  CheckExchange(transport, &node, sizes, 2, 4, 1);
  CheckExchange(transport, &node, sizes, 2, 1, 3);
  CheckExchange(transport, &node, sizes, 2, 5, 3);
  CheckExchange(transport, &node, {0, 8, 200, 20 * kKiB}, 300, 1, 1);
  // Credit comes back in portions, so that a little of it may be missing.
  constexpr int kPulled = 40;
  const int64_t whole = credit_bytes < 0 ? 0 : credit_bytes / (kEager + 1);
  CheckLatePulls(transport, &node, kPulled, static_cast<int>(std::min<int64_t>(whole, kPulled)));
  CheckBacklog(transport, &node, small_credit);
  CheckBacklog(transport, &node, small_credit);
  CheckExchange(transport, &node, {0, 8, 200, 20 * kKiB}, 50, 1, 1);
  if (full) CheckExchange(transport, &node, {64 * kKiB * kKiB}, 1, 1, 1);
  transport->Close();
  Waiter late;
  transport->Send(0, Header{}, {}, &late);
  CHECK(late.status.code() == Code::kUnavailable);
  CHECK(!transport->Poll());
  return failed();
}

// Freezes the transport with a payload under way each way, which MPI cannot give back: nothing is told
// twice or never, and all other processes are lost. Collective; `comm` is of no use afterwards.
extern "C" int JaxccompCheckFreeze(uint64_t comm, uint64_t byte_type) {
  using namespace jaxccomp;
  struct Frozen final : Receiver {
    void OnMessage(const Header&, std::span<const std::byte>, Announced announced) override {
      transport->Pull(announced, {&into, 1}, &pulled);
    }
    void OnPeerLost(int process, const Status& why) override {
      CHECK_EQ(why.message(), "frozen");
      CHECK(lost.insert(process).second);
    }
    MpiTransport* transport = nullptr;
    Piece into;
    Waiter pulled;
    std::set<int> lost;
  } node;
  static Bytes incoming(8 << 20), outgoing(8 << 20);   // for as long as MPI lives
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
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!transport->HasTransfers() && std::chrono::steady_clock::now() < deadline) {
    transport->Poll();
  }
  CHECK(transport->HasTransfers());
  const Status why(Code::kUnavailable, "frozen");
  for (int times : {1, 2}) {
    transport->Freeze(why);
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
  // Nothing that is under way is waited for at the end, either.
  transport->ShutdownBarrier(std::chrono::seconds(60));
  return static_cast<int>(testing::FailedChecks().load() - failed_before);
}

// Half a round trip between ranks 0 and 1 in microseconds, the mean of `rounds`; -1 on failure.
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
    void OnPeerLost(int, const Status&) override { lost = true; }
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
