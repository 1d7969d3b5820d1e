// SPDX-License-Identifier: Apache-2.0

package sparkdl.comm

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.file.{Files, Path, Paths}

/** Golden files, which the Python tests compare with too. */
object Golden {
  private val directory: Path = Paths.get("..", "..", "tests", "golden")

  def bytes(name: String): Array[Byte] = Files.readAllBytes(directory.resolve(name))

  def floats(name: String): Array[Float] = {
    val buffer = ByteBuffer.wrap(bytes(name)).order(ByteOrder.LITTLE_ENDIAN).asFloatBuffer
    val values = new Array[Float](buffer.remaining)
    buffer.get(values)
    values
  }

  def shorts(name: String): Array[Short] = {
    val buffer = ByteBuffer.wrap(bytes(name)).order(ByteOrder.LITTLE_ENDIAN).asShortBuffer
    val values = new Array[Short](buffer.remaining)
    buffer.get(values)
    values
  }
}
