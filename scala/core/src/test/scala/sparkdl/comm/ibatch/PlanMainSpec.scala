// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.ibatch

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, PrintStream}

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import org.scalatest.funsuite.AnyFunSuite

class PlanMainSpec extends AnyFunSuite {
  private val mapper = new ObjectMapper

  private def answers(lines: String*): Seq[JsonNode] = {
    val (in, out, printed) = (System.in, System.out, new ByteArrayOutputStream)
    System.setIn(new ByteArrayInputStream(lines.mkString("\n").getBytes("UTF-8")))
    System.setOut(new PrintStream(printed))
    try PlanMain.main(Array.empty)
    finally {
      System.setIn(in)
      System.setOut(out)
    }
    printed.toString("UTF-8").linesIterator.map(mapper.readTree).toSeq
  }

  private def request(direction: String, policy: String = "layerwise"): String =
    s"""{"startup": 1, "transfer": [2, 3], "compute": [4, 5], "policy": "$policy", "direction": "$direction"}"""

  test("every line is answered with a line; pushes are in reverse order, mirrored in time") {
    val Seq(pull, push) = answers(request("pull"), request("push"))
    assert(
      pull.toString === """{"predicted_seconds":12.0,"optimal_ratio":1.0,"batches":[[1,1],[2,2]],""" +
        """"schedule":[[0.0,3.0,3.0,7.0],[3.0,7.0,7.0,12.0]]}"""
    )
    assert(push.path("batches").toString === "[[2,2],[1,1]]")
    assert(push.path("schedule").toString === "[[5.0,9.0,0.0,5.0],[9.0,12.0,5.0,9.0]]")
  }

  test("both directions together: batches are chosen, or predicted as given") {
    val direction = """"startup": 1, "transfer": [2, 3], "compute": [4, 5]"""
    def both(batches: String) = s"""{"pull": {$direction$batches}, "push": {$direction$batches}}"""
    val Seq(chosen, whole, bad) =
      answers(both(""), both(""", "batches": [[1, 2]]"""), both(""", "batches": [[1, 1]]"""))
    assert(whole.path("predicted_iteration_seconds").asDouble === 2 * (1 + 5) + 2 * 9)
    assert(chosen.path("predicted_iteration_seconds").asDouble <= whole.path(
      "predicted_iteration_seconds"
    ).asDouble)
    assert(chosen.path("pull").path("batches").toString === "[[1,1],[2,2]]")
    assert(chosen.path("push").path("batches").toString === "[[2,2],[1,1]]")
    assert(bad.path("error").asText.contains("that cover 2 layers"))
  }

  test("inline blocks wait for more urgent blocks, and have no start-up") {
    def both(noticed: String) = {
      def direction(compute: String, batches: String) =
        s"""{"startup": 0.1, "transfer": [0.9, 0.3], "compute": $compute, "bytes": [100, 1], "batches": $batches$noticed}"""
      s"""{"pull": ${direction("[0.5, 0]", "[[1, 1], [2, 2]]")}, "push": ${direction(
          "[0, 0]",
          "[[2, 2], [1, 1]]"
        )}}"""
    }
    val seconds =
      answers(both(""), both(""", "notice_bytes": 100""")).map(
        _.path("predicted_iteration_seconds").asDouble
      )
    assert(seconds.map(found => math.round(found * 1e6)) === Seq(2800000, 2600000))
    assert(
      answers(both(""", "notice_bytes": 0.5""")).head.path("error").asText.contains("whole numbers")
    )
  }

  test("a bad request is answered with its error, and the next one with a plan") {
    val bad = Seq(
      "{" -> "not JSON",
      "{}" -> "startup",
      """{"startup": 1, "transfer": 3}""" -> "transfer=3 in a profile",
      request("sideways") -> "direction=sideways",
      request("pull", "best") -> "policy best",
      request("pull", "fixed:7") -> "needs the bytes"
    )
    val replies = answers(bad.map(_._1) :+ request("pull"): _*)
    bad.zip(replies).foreach { case ((_, said), reply) =>
      assert(reply.path("error").asText.contains(said))
    }
    assert(replies.last.path("batches").size === 2)
  }
}
