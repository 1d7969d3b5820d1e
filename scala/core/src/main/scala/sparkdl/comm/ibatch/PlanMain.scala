package sparkdl.comm.ibatch

import java.io.PrintStream
import java.nio.charset.StandardCharsets.UTF_8

import scala.io.Source

import com.fasterxml.jackson.core.JsonProcessingException
import com.fasterxml.jackson.databind.ObjectMapper

import sparkdl.comm.SystemClock

/**
 * Program that answers each line of standard input, a [[PlanRequest]], with a line. Its `error` says why there is no
 * plan. It needs no Spark.
 */
object PlanMain {
  def main(arguments: Array[String]): Unit = {
    val mapper = new ObjectMapper
    val out = new PrintStream(System.out, false, UTF_8)
    Source.fromInputStream(System.in, UTF_8.name).getLines().foreach { line =>
      val reply = mapper.createObjectNode()
      try PlanRequest.answer(mapper.readTree(line), reply, SystemClock)
      catch {
        case e: JsonProcessingException => reply.put("error", s"not JSON: ${e.getOriginalMessage}")
        case e: IllegalArgumentException => reply.put("error", e.getMessage.stripPrefix("requirement failed: "))
      }
      out.println(mapper.writeValueAsString(reply))
    }
    out.flush()
  }
}
