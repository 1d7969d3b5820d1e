// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm.chunks

import java.nio.ByteBuffer

import org.scalatest.funsuite.AnyFunSuite

class PartialMessagesSpec extends AnyFunSuite {
  private val messages = new PartialMessages

  /** Add a part of message `number`. Return the message if it is complete. */
  private def add(number: Long, total: Int, bytes: Int*): Option[Seq[Byte]] =
    messages.add(Wire.Part(number, total, ByteBuffer.wrap(bytes.map(_.toByte).toArray)))
      .map(whole => Seq.fill(whole.remaining)(whole.get()))

  test("parts of several messages may alternate") {
    assert(add(1, 3, 1) === None)
    assert(add(2, 2, 5) === None)
    assert(add(3, 2, 8, 9) === Some(Seq[Byte](8, 9)))
    assert(add(1, 3, 2, 3) === Some(Seq[Byte](1, 2, 3)))
    assert(add(2, 2, 6) === Some(Seq[Byte](5, 6)))
    assert(add(4, 0) === Some(Seq.empty[Byte]))
  }

  test("an empty part of a message that is not empty is refused: parts are stored") {
    intercept[Wire.ProtocolException](add(1, 3))
    assert(add(1, 3, 1) === None)
    intercept[Wire.ProtocolException](add(1, 3))
    assert(add(1, 3, 2, 3) === Some(Seq[Byte](1, 2, 3)))
  }

  test("a message with the number of an incomplete one is refused: it would stay incomplete") {
    add(1, 3, 1)
    for (bytes <- Seq(Seq(1, 2, 3), Seq(1, 2), Seq.empty))
      withClue(bytes)(intercept[Wire.ProtocolException](add(1, bytes.size, bytes: _*)))
    assert(add(1, 3, 2, 3) === Some(Seq[Byte](1, 2, 3)))
  }
}
