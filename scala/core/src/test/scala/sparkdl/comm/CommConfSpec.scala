// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import org.apache.spark.SparkConf
import org.scalatest.funsuite.AnyFunSuite

class CommConfSpec extends AnyFunSuite {
  private def read(ports: String) =
    CommConf(new SparkConf(false).set("spark.sparkdl.comm.ports", ports))

  test("the default is any port") {
    assert(CommConf(new SparkConf(false)) === CommConf(0, 1))
  }

  test("a port and a range of ports are parsed") {
    assert(read("40000") === CommConf(40000, 1))
    assert(read("40000-40099") === CommConf(40000, 100))
  }

  test("the container on YARN is what Spark asks for") {
    def container(settings: (String, String)*) =
      CommConf(new SparkConf(false).setAll(settings)).containerBytes.map(_ >> 20)
    val yarn = "spark.master" -> "yarn"
    assert(container("spark.master" -> "spark://host:7077") === None)
    assert(container(yarn) === Some(1024 + 384))
    assert(container(yarn, "spark.executor.memory" -> "8g") === Some(8192 + 819))
    assert(container(yarn, "spark.executor.memory" -> "2g", "spark.executor.memoryOverhead" -> "1g")
      === Some(3072))
    assert(container(yarn, "spark.memory.offHeap.size" -> "1g") === Some(1024 + 384 + 1024))
  }

  Seq("abc", "80", "40000-39999", "40000-70000", "1-2-3", "").foreach { text =>
    test(s"'$text' is refused with the key and the value") {
      val error = intercept[IllegalArgumentException](read(text))
      assert(error.getMessage.contains(s"spark.sparkdl.comm.ports=$text"))
    }
  }
}
