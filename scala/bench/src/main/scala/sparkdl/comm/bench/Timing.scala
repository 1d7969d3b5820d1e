// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.bench

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.fasterxml.jackson.databind.node.ObjectNode

/**
 * Method that is timed, such as a fetch. `run` brings `bytes` from each of `servers`. It returns
 * when all have arrived, and its result is a function that checks them.
 */
private[bench] final case class Way(name: String, servers: Int, bytes: Int)(
    val run: () => () => Boolean
)

private[bench] object Timing {

  /**
   * Measure all methods in turn, so that a disturbance affects them alike.
   *
   * @param repeats samples of each method, after as many runs that do not count
   * @return for each method a JSON object {way, servers, bytes, seconds: [...], verified}. `way` is
   *    the method's name
   */
  def measure(repeats: Int, ways: Seq[Way]): Seq[String] = {
    val seconds = ways.map(_ => Array.newBuilder[Double])
    val right = Array.fill(ways.size)(true)
    for (repeat <- 0 until 2 * repeats; (way, index) <- ways.zipWithIndex) {
      val begin = System.nanoTime
      val check = way.run()
      val taken = (System.nanoTime - begin) / 1e9
      right(index) &= check()
      if (repeat >= repeats) seconds(index) += taken
    }
    ways.indices.map(index => row(ways(index), seconds(index).result(), right(index)))
  }

  private def row(way: Way, seconds: Array[Double], verified: Boolean): String = {
    val mapper = new ObjectMapper
    val row = mapper.createObjectNode()
    row.put("way", way.name).put("servers", way.servers).put("bytes", way.bytes).put(
      "verified",
      verified
    )
    row.set[ObjectNode]("seconds", mapper.valueToTree[JsonNode](seconds)).toString
  }
}
