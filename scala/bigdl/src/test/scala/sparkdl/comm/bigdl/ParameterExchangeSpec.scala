package sparkdl.comm.bigdl

import org.scalatest.funsuite.AnyFunSuite

class ParameterExchangeSpec extends AnyFunSuite {
  test("more memory outside of the heap than there can be is refused, with its size and the keys to change") {
    // Java's own: to take all that this JVM has would disturb other tests.
    val refused = intercept[UnsupportedTrainingException](
      ParameterExchange.orRefusal(12345)(throw new OutOfMemoryError("Cannot reserve 12345 bytes of direct memory"))
    )
    val parts = Seq("needs 12345 bytes", "Cannot reserve", "-XX:MaxDirectMemorySize", "spark.executor.memoryOverhead")
    parts.foreach(part => assert(refused.getMessage.contains(part)))
    assert(!refused.getMessage.contains("\n"), "the driver finds the first line alone")
  }
}
