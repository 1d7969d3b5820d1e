// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

class ParameterExchangeSpec extends AnyFunSuite {
  test("too little direct memory is refused, with the needed size and the keys to change") {
    // Java's own error. Allocating all memory of this JVM would disturb other tests.
    val refused = intercept[UnsupportedTrainingException](
      ParameterExchange.allocateOrRefuse(12345)(
        throw new OutOfMemoryError("Cannot reserve 12345 bytes of direct memory")
      )
    )
    val parts = Seq(
      "needs 12345 bytes",
      "Cannot reserve",
      "-XX:MaxDirectMemorySize",
      "spark.executor.memoryOverhead"
    )
    parts.foreach(part => assert(refused.getMessage.contains(part)))
    assert(!refused.getMessage.contains("\n"), "the driver finds only the first line")
  }
}
