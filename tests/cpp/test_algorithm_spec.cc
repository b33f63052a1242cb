#include <string>
#include <utility>

#include "check.h"
#include "collective/algorithm_spec.h"

namespace jaxccomp {
namespace {

TEST(algorithm_spec_sets_name_partitions_and_chunk_size) {
  const auto spec = ParseAlgorithm(Collective::kAllreduce, "parameter_server:partitions=3,chunk=1000");
  if (!CHECK_OK(spec)) return;
  CHECK_EQ(std::string(spec->name), "parameter_server");
  CHECK_EQ(spec->partitions, 3);
  CHECK_EQ(spec->chunk_bytes, 960);
  Problem problem;
  const int64_t chunk_bytes = problem.chunk_bytes;
  const auto plain = ParseAlgorithm(Collective::kBcast, "auto");
  if (!CHECK_OK(plain)) return;
  plain->ApplyTo(&problem);
  CHECK_EQ(problem.chunk_bytes, chunk_bytes);
  spec->ApplyTo(&problem);
  CHECK_EQ(problem.chunk_bytes, 960);
}

TEST(algorithm_spec_refuses_invalid_text) {
  for (const char* text : {"", "rong", "ring:", "ring:chunk", "ring:chunk=", "ring:chunk=-5",
                           "ring:chunk=12", "ring:chunk=64KiB", "ring:partitions=2", "ring:depth=2",
                           "hierarchical:level=host",
                           "parameter_server:partitions=0", "parameter_server:partitions=99999",
                           "ring:chunk=99999999999999999999"}) {
    const auto spec = ParseAlgorithm(Collective::kAllreduce, text);
    if (!CHECK(!spec.ok())) continue;
    CHECK(spec.status().code() == Code::kInvalidArgument);
    CHECK(spec.status().message().find(text) != std::string::npos);
  }
}

}  // namespace
}  // namespace jaxccomp
