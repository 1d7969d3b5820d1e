// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.util.Properties

import org.scalatest.funsuite.AnyFunSuite

class CommPluginSpec extends AnyFunSuite {
  private val build = new Properties
  build.setProperty("spark.version", "3.5")
  build.setProperty("scala.binary.version", "2.12")

  test("the jar accepts the Spark and Scala that it was built for") {
    CommPlugin.checkBuild(build, "3.5.9", "2.12.18")
    new CommPlugin().driverPlugin()
  }

  test("the entry point loads in Java 8, and asks for the Java that the rest needs") {
    val entry = getClass.getResourceAsStream("CommPlugin.class")
    try {
      val head = new java.io.DataInputStream(entry)
      assert((head.readInt(), head.readShort(), head.readShort()) === ((0xcafebabe, 0, 52)))
    } finally entry.close()
    build.setProperty("java.release", "17")
    Seq("17", "17.0.15", "17-ea", "21.0.2", "25").foreach(CommPlugin.checkJava(build, _))
    Seq("1.8.0_402", "9", "11.0.22", "16-ea").foreach { java =>
      val message = intercept[IllegalStateException](CommPlugin.checkJava(build, java)).getMessage
      Seq("Java 17 or newer", s"Java $java", "JAVA_HOME").foreach(part =>
        assert(message.contains(part))
      )
    }
  }

  Seq(("4.2.0", "2.13.16"), ("3.5.9", "2.13.8"), ("3.50.1", "2.12.18")).foreach {
    case (spark, scala) =>
      test(s"on Spark $spark with Scala $scala the error names both versions") {
        val message =
          intercept[IllegalStateException](CommPlugin.checkBuild(build, spark, scala)).getMessage
        Seq("Spark 3.5", "Scala 2.12", s"Spark $spark", s"Scala $scala", "spark.jars").foreach(
          part =>
            assert(message.contains(part))
        )
      }
  }
}
