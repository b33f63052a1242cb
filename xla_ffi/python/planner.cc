#include "python/planner.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/price.h"
#include "python/check.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// (latency, bytes per second, processor seconds per message, processor seconds per byte).
PairCost PairOf(const py::tuple& row) {
  return {.latency_seconds = row[0].cast<double>(),
          .bytes_per_second = row[1].cast<double>(),
          .processor_seconds = row[2].cast<double>(),
          .processor_seconds_per_byte = row[3].cast<double>()};
}

Cluster ClusterOf(const py::dict& given) {
  Cluster cluster;
  for (const py::handle each : given["hosts"]) {
    const auto host = each.cast<py::tuple>();   // (ranks, cores, up, down)
    cluster.hosts.push_back({.ranks = host[0].cast<int>(),
                             .cores = host[1].cast<int>(),
                             .up_rate = host[2].cast<double>(),
                             .down_rate = host[3].cast<double>()});
  }
  cluster.ranks_per_process = given["ranks_per_process"].cast<int>();
  cluster.one_machine = given["one_machine"].cast<bool>();
  cluster.within_process = PairOf(given["process"]);
  cluster.within_host = PairOf(given["host"]);
  cluster.between_hosts = PairOf(given["link"]);
  cluster.copy_rate = given["copy_rate"].cast<double>();
  cluster.merge_rate = given["merge_rate"].cast<double>();
  cluster.task_seconds = given["task_seconds"].cast<double>();
  cluster.call_seconds = given["call_seconds"].cast<double>();
  return cluster;
}

// (ratio, max encoded bytes / value bytes, encode rate, decode rate, merge rate, lossless).
CodecCost CodecOf(const py::tuple& row) {
  return {.ratio = row[0].cast<double>(),
          .max_code_bytes = row[1].cast<double>(),
          .encode_rate = row[2].cast<double>(),
          .decode_rate = row[3].cast<double>(),
          .merge_rate = row[4].cast<double>(),
          .lossless = row[5].cast<bool>()};
}

py::dict PriceRow(const std::string& collective, const std::string& algorithm, int64_t block_bytes,
                  int64_t chunk_bytes, int root, bool wide, const py::dict& given,
                  const std::optional<py::tuple>& codec, bool every_rank, double limit_seconds) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Cluster cluster = ClusterOf(given);
  Problem problem;
  problem.root = root;
  problem.block_bytes = block_bytes;
  problem.chunk_bytes = chunk_bytes;
  problem.wide = wide;
  problem.encoded = codec.has_value();
  if (codec.has_value()) cluster.codec = CodecOf(*codec);
  problem.exact = cluster.codec.lossless;
  const Result<Price> price = [&] {
    py::gil_scoped_release released;
    return PriceOf(*parsed, algorithm, std::move(problem), cluster,
                   every_rank ? PriceBy::kEveryRank : PriceBy::kEither, limit_seconds);
  }();
  Check(price.status());
  const SimulatedRun& run = price->run;
  py::dict busy;
  busy["encode"] = run.busy.encode;
  busy["decode"] = run.busy.decode;
  busy["merge"] = run.busy.merge;
  busy["copy"] = run.busy.copy;
  busy["messages"] = run.busy.messages;
  py::dict row;
  row["algorithm"] = std::string(price->algorithm->name);
  row["rank_seconds"] = run.rank_seconds;
  row["up_bytes"] = run.up_bytes;
  row["down_bytes"] = run.down_bytes;
  row["local_bytes"] = run.local_bytes;
  row["busy"] = busy;
  row["tasks"] = run.task_count;
  row["reduced"] = price->reduced;
  row["ended_early"] = run.ended_early;
  return row;
}

}  // namespace

void DefinePlanner(py::module_& m) {
  m.def("price", &PriceRow, py::arg("collective"), py::arg("algorithm"), py::arg("block_bytes"),
        py::arg("chunk_bytes"), py::arg("root"), py::arg("wide"), py::arg("cluster"),
        py::arg("codec"), py::arg("every_rank"), py::arg("limit_seconds"));
}

}  // namespace jaxccomp
