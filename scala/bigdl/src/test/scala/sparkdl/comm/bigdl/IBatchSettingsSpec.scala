// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.apache.spark.SparkConf
import org.scalatest.funsuite.AnyFunSuite

import sparkdl.comm.ibatch.Policy

class IBatchSettingsSpec extends AnyFunSuite {
  private def settings(keys: (String, String)*): IBatchSettings =
    IBatchSettings(new SparkConf(false).setAll(keys.map { case (key, value) =>
      s"spark.sparkdl.comm.$key" -> value
    }))

  test("defaults equal those of the conf's table") {
    val IBatchSettings(batching, session, restarts) = settings()
    assert((batching.pull, batching.push) === ((Policy.IBatch, Policy.IBatch)))
    assert((batching.profileIterations, batching.replanDrift) === ((10, 0.25)))
    assert((session.timeoutSeconds, session.pullsAhead, session.sharesMemory) === ((
      300.0,
      true,
      false
    )))
    assert(session.encodings.parameters.name === "fp32")
    assert(restarts === 2)
  }

  test("keys equal those of PyTorch's parameter server") {
    val IBatchSettings(batching, session, restarts) =
      settings(
        "ps.batching" -> "ibatch",
        "ps.wire" -> "bf16",
        "timeout" -> "90s",
        "maxRestarts" -> "0"
      )
    assert((batching.pull, batching.push) === ((Policy.IBatch, Policy.IBatch)))
    assert((session.timeoutSeconds, session.pullsAhead, restarts) === ((90.0, true, 0)))
    assert(session.encodings.gradients.name === "bf16")
  }

  Seq(
    "ps.batching" -> "best",
    "ps.wire" -> "fp8",
    "ps.profileIterations" -> "0",
    "ps.profileIterations" -> "2147483648",
    "ps.replanDrift" -> "wide",
    "timeout" -> "soon",
    "timeout" -> "0s",
    "timeout" -> "1000000001s",
    "timeout" -> "200000000000d",
    "maxRestarts" -> "-1",
    "compression" -> "mstopk:0.01"
  ).foreach { case (key, value) =>
    test(s"$key=$value is refused") {
      val refused = intercept[UnsupportedTrainingException](settings(key -> value))
      assert(refused.getMessage.contains(s"$key=$value") || refused.getMessage.contains(value))
    }
  }
}
