package sparkdl.comm

import java.util.Properties

import org.scalatest.funsuite.AnyFunSuite

class CommPluginSpec extends AnyFunSuite {
  private val build = new Properties
  build.setProperty("spark.version", "3.5")
  build.setProperty("scala.binary.version", "2.12")

  test("the jar runs where it was built for") {
    CommPlugin.checkBuild(build, "3.5.9", "2.12.18")
    new CommPlugin().driverPlugin()
  }

  Seq(("4.2.0", "2.13.16"), ("3.5.9", "2.13.8"), ("3.50.1", "2.12.18")).foreach { case (spark, scala) =>
    test(s"on Spark $spark with Scala $scala it names both sides") {
      val message = intercept[IllegalStateException](CommPlugin.checkBuild(build, spark, scala)).getMessage
      Seq("Spark 3.5", "Scala 2.12", s"Spark $spark", s"Scala $scala", "spark.jars").foreach(part =>
        assert(message.contains(part))
      )
    }
  }
}
