// Predicted costs: small cases against results computed by hand, and properties that hold for all inputs.

#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "check.h"
#include "planner/price.h"
#include "planner/processors.h"
#include "planner/symmetry.h"

namespace jaxccomp {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Links of 1 MiB per millisecond; all other costs are negligible.
Cluster FastHosts(int hosts, int ranks = 1) {
  Cluster cluster;
  const double link = 1000.0 * kMiB;
  cluster.hosts.assign(static_cast<size_t>(hosts),
                       {.ranks = ranks, .cores = 2, .up_rate = link, .down_rate = link});
  cluster.within_process = cluster.within_host = {.latency_seconds = 1e-9, .bytes_per_second = 1e17};
  cluster.between_hosts = {.latency_seconds = 1e-9, .bytes_per_second = 1e17};
  cluster.copy_rate = cluster.merge_rate = 1e17;
  cluster.codec = {.ratio = 2, .max_code_bytes = 0.5, .encode_rate = 1e17, .decode_rate = 1e17,
                   .merge_rate = 1e17};
  return cluster;
}

// All resources have a cost.
Cluster SlowHosts(int hosts, int ranks = 1) {
  Cluster cluster = FastHosts(hosts, ranks);
  cluster.between_hosts = {.latency_seconds = 20e-6, .bytes_per_second = 1e9,
                           .processor_seconds = 5e-6, .processor_seconds_per_byte = 3e-10};
  cluster.within_host = {.latency_seconds = 2e-6, .bytes_per_second = 4e9,
                         .processor_seconds = 1e-6, .processor_seconds_per_byte = 1e-10};
  cluster.within_process = {.latency_seconds = 1e-6, .bytes_per_second = 8e9};
  cluster.copy_rate = 9e9;
  cluster.merge_rate = 7e9;
  cluster.task_seconds = 1e-6;
  cluster.codec = {.ratio = 1.5, .max_code_bytes = 1, .encode_rate = 3e9, .decode_rate = 4e9,
                   .merge_rate = 2.5e9};
  return cluster;
}

Problem Of(int64_t block_bytes, bool encoded = false) {
  Problem problem;
  problem.block_bytes = block_bytes;
  problem.encoded = encoded;
  return problem;
}

double SecondsOf(const Result<Price>& price) {
  double most = 0;
  for (double each : price->run.rank_seconds) most = std::max(most, each);
  return most;
}

bool Near(double a, double b) { return std::abs(a - b) <= 1e-3 * std::abs(b); }

TEST(planner_matches_costs_computed_by_hand) {
  // 8 chunks of half a MiB along a chain of 4 take 8 + 2 steps of half a millisecond.
  auto price = PriceOf(Collective::kBcast, "chain", Of(4 * kMiB), FastHosts(4));
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 5e-3));
  CHECK(Near(price->run.rank_seconds[1], 4.5e-3));   // it still has to forward its last chunk
  CHECK_EQ(price->run.up_bytes, (std::vector<int64_t>{4 * kMiB, 4 * kMiB, 4 * kMiB, 0}));
  CHECK_EQ(price->run.down_bytes, (std::vector<int64_t>{0, 4 * kMiB, 4 * kMiB, 4 * kMiB}));
  // The root sends the block twice, one copy after the other.
  price = PriceOf(Collective::kBcast, "binomial", Of(kMiB / 2), FastHosts(4));
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 1e-3));
  // Encoded to half the bytes.
  price = PriceOf(Collective::kBcast, "chain", Of(4 * kMiB, true), FastHosts(4));
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 2.5e-3));
  // A reduction on a cluster without codec costs: two parts of half a MiB, one after the other.
  Cluster without = FastHosts(2);
  without.codec = CodecCost();
  price = PriceOf(Collective::kAllreduce, "ring", Of(kMiB), without);
  if (!CHECK_OK(price)) return;
  CHECK(SecondsOf(price) > 1e-3 && SecondsOf(price) < 1.6e-3);
  // Three blocks into each rank's link.
  price = PriceOf(Collective::kAllgather, "direct", Of(kMiB), FastHosts(4));
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 3e-3));
}

TEST(planner_models_encoding_on_cores) {
  // Four ranks encode and decode a MiB each, on cores of 1 MiB per millisecond. The root encodes its chunks one after
  // the other on one thread, and other ranks do not delay it.
  Cluster cluster = FastHosts(2);
  for (HostCost& host : cluster.hosts) host.cores = 1;
  cluster.codec.encode_rate = 1000.0 * kMiB;
  auto price = PriceOf(Collective::kBcast, "chain", Of(4 * kMiB, true), cluster);
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 4.25e-3));   // includes the transfer of the last code, half a chunk
  CHECK(Near(price->run.busy.encode, 4e-3));
  // Two ranks share a machine of one core: while one encodes, the other cannot.
  cluster.one_machine = true;
  cluster.codec.ratio = 1e6;
  price = PriceOf(Collective::kAllgather, "direct", Of(2 * kMiB, true), cluster);
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 4e-3));
  cluster.one_machine = false;
  price = PriceOf(Collective::kAllgather, "direct", Of(2 * kMiB, true), cluster);
  if (!CHECK_OK(price)) return;
  CHECK(Near(SecondsOf(price), 2e-3));
}

TEST(planner_shares_cores_evenly) {
  Processors two(2, 1);
  two.Add(0, 1.0, {.task = 0});
  two.Add(0, 1.0, {.task = 1});
  two.Add(0, 2.0, {.task = 2});
  CHECK_EQ(two.NextEnd(), 1.5);   // three on two cores
  CHECK_EQ(two.Take(1.5).task, 0);
  CHECK_EQ(two.NextEnd(), 1.5);
  CHECK_EQ(two.Take(1.5).task, 1);
  CHECK_EQ(two.NextEnd(), 2.5);   // alone, and not faster than on one core
  CHECK_EQ(two.busy_seconds(), 4.0);
}

// Bytes sent equal bytes received, and equal the algorithm's known total.
TEST(planner_sends_as_many_bytes_as_it_receives) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective > Collective::kAlltoall) continue;
    const auto price = PriceOf(algorithm.collective, std::string(algorithm.name),
                               Of(64 * 5 * 1000), SlowHosts(5));
    if (!CHECK_OK(price)) continue;
    const auto sum = [](const std::vector<int64_t>& each) {
      return std::accumulate(each.begin(), each.end(), int64_t{0});
    };
    int64_t sent_bytes = 0;
    Problem problem = Of(64 * 5 * 1000);
    problem.ranks = 5;
    problem.multi_slot = true;
    problem.hosts = {0, 1, 2, 3, 4};
    for (problem.rank = 0; problem.rank < 5; ++problem.rank) {
      sent_bytes += algorithm.build(problem).SentBytes();
    }
    CHECK_EQ(sum(price->run.up_bytes), sent_bytes);
    CHECK_EQ(sum(price->run.down_bytes), sent_bytes);
  }
}

TEST(planner_predicts_no_higher_cost_for_more_bandwidth) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    if (algorithm.collective > Collective::kAlltoall) continue;
    double last = 1e9;
    for (double rate : {1e7, 1e8, 1e9, 1e10}) {
      Cluster cluster = SlowHosts(4);
      for (HostCost& host : cluster.hosts) host.up_rate = host.down_rate = rate;
      const auto price =
          PriceOf(algorithm.collective, std::string(algorithm.name), Of(kMiB), cluster);
      if (!CHECK_OK(price)) continue;
      CHECK(SecondsOf(price) <= last);
      last = SecondsOf(price);
    }
  }
}

// The reduced simulation, of one host in place of all equal hosts, gives exactly the times of the full simulation.
void CompareReduced(int hosts, int ranks, int64_t block_bytes, bool encoded, bool one_machine,
                    int* reduced_count) {
  for (const Algorithm& algorithm : AlgorithmTable()) {
    const bool sized = algorithm.collective <= Collective::kAlltoall ||
                       algorithm.collective == Collective::kBarrier;
    if (!sized) continue;
    Cluster cluster = SlowHosts(hosts, ranks);
    cluster.one_machine = one_machine;
    const std::string name(algorithm.name);
    const auto one = PriceOf(algorithm.collective, name, Of(block_bytes, encoded), cluster);
    if (!CHECK_OK(one)) continue;
    if (!one->reduced) continue;
    ++*reduced_count;
    const auto all =
        PriceOf(algorithm.collective, name, Of(block_bytes, encoded), cluster, PriceBy::kEveryRank);
    if (!CHECK_OK(all)) continue;
    const bool same = CHECK(one->run.rank_seconds == all->run.rank_seconds) &&
                      CHECK(one->run.up_bytes == all->run.up_bytes) &&
                      CHECK(one->run.down_bytes == all->run.down_bytes) &&
                      CHECK_EQ(one->run.local_bytes, all->run.local_bytes) &&
                      CHECK(Near(one->run.busy.messages + 1e-30, all->run.busy.messages + 1e-30));
    if (!same) {
      std::fprintf(stderr, "%s %s, %d hosts of %d, %ld bytes, coded %d, one machine %d\n",
                   std::string(Info(algorithm.collective).name).c_str(), name.c_str(), hosts, ranks,
                   static_cast<long>(block_bytes), encoded, one_machine);
    }
  }
}

TEST(planner_reduced_simulation_equals_the_full_one) {
  int reduced = 0;
  for (int hosts : {2, 3, 4, 8}) {
    for (int ranks : {1, 2}) {
      for (bool encoded : {false, true}) {
        CompareReduced(hosts, ranks, 64 * 48 * 1000, encoded, hosts == 4, &reduced);
        CompareReduced(hosts, ranks, 1000, encoded, hosts == 3, &reduced);
      }
    }
  }
  CHECK(reduced > 200);
}

TEST(collective_costs_of_reduced_simulations_equal_full_ones_up_to_64) {
  if (!std::getenv("JAXCCOMP_TEST_SLOW")) return;
  int reduced = 0;
  for (auto [hosts, ranks] : {std::pair{7, 1}, {16, 4}, {31, 2}, {64, 1}, {8, 8}}) {
    for (bool encoded : {false, true}) {
      for (int64_t units : {1, 12}) {
        CompareReduced(hosts, ranks, 64 * hosts * ranks * units, encoded, units == 12, &reduced);
      }
    }
  }
  CHECK(reduced > 150);
}

// SymmetryOf compares only some hosts with the first: the other hosts must be equivalent too.
TEST(planner_symmetry_holds_for_all_hosts) {
  int found = 0;
  for (const Algorithm& algorithm : AlgorithmTable()) {
    for (int hosts = 2; hosts <= 9; ++hosts) {
      for (int64_t block_bytes : {int64_t{64} * 2 * hosts * 100, int64_t{64} * 1001, int64_t{8}}) {
        const bool sized = algorithm.collective <= Collective::kAlltoall ||
                           algorithm.collective == Collective::kBarrier;
        if (!sized) continue;
        const Cluster cluster = SlowHosts(hosts, 2);
        Problem problem = Of(block_bytes, true);
        problem.ranks = cluster.Ranks();
        problem.hosts = cluster.HostOfRanks();
        problem.chunk_bytes = 4096;
        const Symmetry symmetry = SymmetryOf(algorithm, problem, cluster);
        if (symmetry == Symmetry::kNone) continue;
        std::vector<Schedule> first;
        for (problem.rank = 0; problem.rank < 2; ++problem.rank) {
          first.push_back(algorithm.build(problem));
        }
        for (int host = 0; host < hosts; ++host) {
          CHECK(IsAlike(algorithm, problem, 2, symmetry, first, host));
        }
        ++found;
      }
    }
  }
  CHECK(found > 150);
}

TEST(planner_refuses_invalid_clusters) {
  const auto refused = [](const Cluster& cluster, std::string_view part) {
    const auto price = PriceOf(Collective::kBcast, "chain", Of(kMiB, true), cluster);
    return !price.ok() && price.status().code() == Code::kInvalidArgument &&
           price.status().message().find(part) != std::string::npos;
  };
  CHECK(refused(Cluster(), "at least one host"));
  Cluster cluster = FastHosts(2);
  cluster.between_hosts.latency_seconds = 0;
  CHECK(refused(cluster, "link latency must be 1e-9 to 1000 seconds"));
  cluster = FastHosts(2);
  cluster.hosts[1].up_rate = NAN;
  CHECK(refused(cluster, "up rate"));
  cluster = FastHosts(2);
  cluster.hosts[1].ranks = 1 << 30;
  CHECK(refused(cluster, "ranks of a host"));
  cluster = FastHosts(2);
  cluster.codec.encode_rate = 0;
  CHECK(refused(cluster, "encode rate"));
  // Too many tasks to simulate one by one; the error names an alternative.
  cluster = FastHosts(4096);
  const auto price = PriceOf(Collective::kAllreduce, "two_shot", Of(64 * kMiB + 64), cluster);
  CHECK(!price.ok());
  CHECK(price.status().message().find("ranks can be") != std::string::npos);
  CHECK(price.status().message().find("a multiple of 262144 bytes") != std::string::npos);
}

}  // namespace
}  // namespace jaxccomp
